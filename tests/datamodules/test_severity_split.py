"""Which images of a pool are for estimation and which for the test: by share, by number, by list, by folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.datamodules.severity.split import FolderSplit, Part, draw, part_of, read_split
from oodlit.errors import DataError, InvalidArgumentError

KEYS = st.sets(st.text(min_size=1, max_size=8), max_size=40)


@given(KEYS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_larger_share_only_adds_test_images(keys: set[str], a: float, b: float) -> None:
    small, large = ({k for k in keys if part_of(k, share) is Part.TEST} for share in sorted((a, b)))
    assert small <= large


def test_share_is_met() -> None:
    found = sum(part_of(f"class/{i}.jpg", 0.25) is Part.TEST for i in range(20_000))
    assert abs(found - 5000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_shares_out_of_range(share: float) -> None:
    with pytest.raises(InvalidArgumentError, match="test_share"):
        part_of("a", share)


@given(KEYS, st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_numbers_are_met_whatever_the_order(keys: set[str], estimation: int, test: int, random) -> None:
    shuffled = sorted(keys)
    random.shuffle(shuffled)
    drawn = draw(shuffled, estimation=estimation, test=test)
    assert drawn == draw(sorted(keys), estimation=estimation, test=test)
    assert list(drawn) == sorted(drawn)
    parts = list(drawn.values())
    assert len(parts) == min(len(keys), estimation + test)
    if len(keys) >= estimation + test:
        assert parts.count(Part.TEST) == test
    elif len(keys) > 1:
        assert 0 < parts.count(Part.TEST) < len(keys)
        share = len(keys) * test / (estimation + test)
        assert abs(parts.count(Part.TEST) - share) <= 1


@given(st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=40), st.text(min_size=1, max_size=8))
def test_one_more_image_moves_at_most_one_of_each_part(keys: set[str], key: str) -> None:
    before, after = draw(keys, estimation=6, test=3), draw(keys | {key}, estimation=6, test=3)
    if len(keys) >= 9:
        for part in Part:
            kept = {k for k, p in before.items() if p is part} & {k for k, p in after.items() if p is part}
            assert len(kept) >= list(before.values()).count(part) - 1


def test_lists(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text("file,part\n./a/1.jpg,test\n\na/2.jpg,estimation\n", encoding="utf-8")
    assert read_split(path) == {"a/1.jpg": Part.TEST, "a/2.jpg": Part.ESTIMATION}
    path.write_text("a/1, 2.jpg\ttest\n", encoding="utf-8")
    assert read_split(path) == {"a/1, 2.jpg": Part.TEST}
    for text, message in (
        ("a.jpg,val\n", "line 1: expected a file and its part .*, separated by ',', got 'a.jpg,val'"),
        ("a.jpg,test\nb.jpg\ttest\n", r"line 1: .*, separated by '\\t', got 'a.jpg,test'"),
        ("a.jpg,test\na.jpg,test\n", "line 2: 'a.jpg' is listed twice"),
        ("file,part\n", "empty list"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_split(path)


def test_folders() -> None:
    assert FolderSplit()("estimation/a/1") is Part.ESTIMATION
    assert FolderSplit()("testing/a/1") is None
