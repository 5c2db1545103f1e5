"""ShardReport finds what is wrong, names it, and reads on."""

import json
import shutil
from pathlib import Path

import pytest

from oodlit.datamodules.shards import Entry, build_shards, find_duplicates, shard_info, verify_shards
from oodlit.errors import DataError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image, write_raw_tar, write_tiny_shards


def messages(folder: Path, **options: object) -> list[str]:
    return [str(problem) for report in verify_shards(folder, **options) for problem in report.problems]


def build(folder: Path, numbers: list[int], name: str = "s") -> Path:
    entries = [Entry(f"{i}.png", lambda i=i: tiny_image(i), group=i % 2) for i in numbers]
    build_shards(entries, folder, name=name, role=Role.OOD, class_names=("even", "odd"), shard_size=2)
    return folder


def test_a_whole_set_has_no_problems(tmp_path: Path) -> None:
    build(tmp_path, [0, 1, 2, 3, 5])
    done: list[int] = []
    (report,) = verify_shards(tmp_path, expected={"even": 2, "odd": 3}, progress=done.append)
    assert report.ok
    assert (report.num_samples, dict(report.group_counts), dict(report.label_counts)) == (5, {0: 2, 1: 3}, {-1: 5})
    assert sum(done) == 5
    assert shard_info(tmp_path)["test"].num_samples == 5
    assert shard_info(tmp_path)["test"].size == sum(path.stat().st_size for path in tmp_path.glob("*.tar"))


def test_known_numbers(tmp_path: Path) -> None:
    build(tmp_path, [0, 1, 2])
    assert messages(tmp_path, expected={"even": 3, "none": 1}) == [
        "class 'even': expected 3 samples, found 2",
        "class 'none': expected 1 samples, found 0",
        "the manifest has class 'odd' (1 samples found), but this data set has no such class",
    ]


def test_a_changed_image_is_found_by_the_checksum(tmp_path: Path) -> None:
    build(tmp_path, [0, 1, 2])
    path = tmp_path / "s-test-000000.tar"
    data = path.read_bytes().replace(tiny_image(1), tiny_image(1)[:-30] + bytes(30))
    path.write_bytes(data)
    found = messages(tmp_path)
    assert found[0] == "s-test-000000.tar: the checksum differs from that in the manifest"
    assert found[1].startswith("s-test-000000.tar: 1%2Epng: undecodable PNG image")
    assert len(found) == 2
    assert len(messages(tmp_path, decode=False)) == 1


def test_it_reads_on_after_damage(tmp_path: Path) -> None:
    build(tmp_path, [0, 1, 2, 3, 4, 5, 6])
    (tmp_path / "s-test-000000.tar").unlink()
    second = tmp_path / "s-test-000001.tar"
    second.write_bytes(second.read_bytes()[:2000])
    shutil.copy(tmp_path / "s-test-000002.tar", tmp_path / "s-test-000009.tar")
    found = messages(tmp_path)
    assert found[0] == "s-test-000000.tar: the shard is missing; restore it, or rebuild the shards"
    assert found[1].startswith("s-test-000001.tar: expected")
    assert found[2:] == [
        "group 0: expected 4 samples according to the manifest, found 2",
        "group 1: expected 3 samples according to the manifest, found 1",
        "s-test-000009.tar is not in the manifest; remove this file, or remove the manifest to count the samples again",
    ]


def test_hidden_tars_and_folders_without_a_manifest(tmp_path: Path) -> None:
    write_raw_tar(tmp_path / "a.tar", {"0.jpg": tiny_image(0)})
    shutil.copy(tmp_path / "a.tar", tmp_path / ".b.tar")
    assert messages(tmp_path) == []
    with pytest.raises(DataError, match=r"expected no split, because the folder has no manifest, got 'val'"):
        verify_shards(tmp_path, split="val")
    with pytest.raises(DataError, match=r"a\.tar: expected an existing folder of shards"):
        verify_shards(tmp_path / "a.tar")


def test_shards_of_others(tmp_path: Path) -> None:
    write_raw_tar(
        tmp_path / "a.tar", {"README": b"x", "0.jpg": tiny_image(0), "0.cls": b"1", "1.jpg": b"", "2.cls": b"1"}
    )
    write_raw_tar(tmp_path / "b.tar", {"0.jpg": tiny_image(1)})
    (report,) = verify_shards(tmp_path)
    assert report.strays == ["a.tar: README"]
    found = [(problem.shard, problem.key) for problem in report.problems]
    assert found == [("a.tar", "1"), ("a.tar", "2"), ("b.tar", "0")]
    assert "the key also occurs in a.tar" in report.problems[2].message
    assert report.info.num_samples == 4


def test_counts_against_a_foreign_manifest(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [3], manifest=False)
    split = {"name": "t", "num_samples": 4, "filenames": ["tiny-000000.tar"], "shard_lengths": [4]}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"t": split}}))
    assert messages(tmp_path) == ["tiny-000000.tar: expected 4 samples according to the manifest, found 3"]


def test_duplicates_within_and_across_sets(tmp_path: Path) -> None:
    write_raw_tar(tmp_path / "c.tar", {"x.png": b"", "y.png": b""})  # broken ones are no duplicates
    first = verify_shards(build(tmp_path / "a", [0, 1, 2], "places"))
    second = verify_shards(build(tmp_path / "b", [2, 7], "ninco"))
    assert [duplicate.keys for duplicate in find_duplicates(first + second)] == [("places/2%2Epng", "ninco/2%2Epng")]
    assert find_duplicates(first) == []
    assert find_duplicates([]) == []


def test_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no shards"):
        verify_shards(tmp_path)
    build(tmp_path, [0])
    with pytest.raises(DataError, match="expected split to be test, got 'train'"):
        verify_shards(tmp_path, split="train")
