"""The smallest rows come out as a sorted list would give them, and room for them is taken once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.detectors.statistics import smallest_rows
from oodlit.detectors.statistics.smallest_rows import SmallestRows


def columns(values: list[int]) -> dict[str, torch.Tensor]:
    rank = torch.tensor(values, dtype=torch.int64)
    return {"rank": rank, "row": rank[:, None] * torch.tensor([1.0, 10.0, 100.0]), "none": torch.zeros(len(values), 0)}


@given(
    parts=st.lists(st.lists(st.integers(-99, 99), max_size=9), max_size=9),
    limit=st.integers(1, 12),
    room=st.integers(1, 5),
    strip=st.sampled_from([1, 2**20]),
    merged_between=st.sampled_from([None, "rank", "as they lie"]),
)
def test_like_a_sorted_list(
    parts: list[list[int]], limit: int, room: int, strip: int, merged_between: str | None
) -> None:
    """However often it is merged in between; what was handed out before stays what it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smallest_rows, "LEAST_ROOM", room)
        patch.setattr(smallest_rows, "STRIP_BYTES", strip)
        store = SmallestRows(limit, by="rank")
        handed_out = []
        for part in parts:
            store.append(columns(part))
            assert len(store) <= store.capacity
            if merged_between:
                store.merge(by="rank" if merged_between == "rank" else None)
                handed_out += [(block["row"], block["row"].clone()) for block in store.blocks]
        store.merge(by="rank")
    expected = columns(sorted(value for part in parts for value in part)[:limit])
    assert len(store) == len(expected["rank"])
    for block in store.blocks:
        assert {name: column.tolist() for name, column in block.items()} == {
            name: column.tolist() for name, column in expected.items()
        }
    assert all(torch.equal(column, before) for column, before in handed_out)


def test_nothing_above_the_bound_can_be_kept() -> None:
    store = SmallestRows(2000, by="rank")
    values = torch.randperm(9000, generator=torch.Generator().manual_seed(0))
    store.append({"rank": values[:3000]})
    assert store.bound is None
    store.append({"rank": values[3000:]})
    assert store.bound is not None
    assert 1999 <= store.bound < 9000
    store.merge(by="rank")
    assert store.blocks[0]["rank"].tolist() == list(range(2000))


def test_what_was_handed_out_is_the_same_tensor() -> None:
    store = SmallestRows(3, by="rank")
    store.append(columns([3, 1, 2, 0]))
    store.merge()
    first = store.blocks[0]["row"]
    store.merge()
    assert store.blocks[0]["row"] is first


def test_few_rows_hold_on_to_no_room() -> None:
    store = SmallestRows(1000, by="rank")
    store.append(columns([3, 1, 2]))
    store.merge(by="rank")
    assert store.blocks[0]["row"].untyped_storage().nbytes() == 3 * 3 * 4


def test_what_is_given_is_copied() -> None:
    store, given_ = SmallestRows(9, by="rank"), columns([1, 2])
    store.append(given_)
    given_["rank"].zero_()
    assert store.blocks[0]["rank"].tolist() == [1, 2]
