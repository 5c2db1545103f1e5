"""Rows kept in pages come out as one would expect of a plain list."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from oodlit.detectors.statistics import row_store
from oodlit.detectors.statistics.row_store import RowStore


def columns(values: list[int]) -> dict[str, torch.Tensor]:
    rank = torch.tensor(values, dtype=torch.int64)
    return {"rank": rank, "row": rank[:, None] * torch.tensor([1.0, 10.0])}


@given(
    parts=st.lists(st.lists(st.integers(-9, 9), max_size=7), max_size=6),
    page=st.integers(1, 200),
    more=st.integers(0, 9),
    by=st.sampled_from([None, "rank"]),
    limit=st.one_of(st.none(), st.integers(1, 20)),
    merged_between=st.booleans(),
)
@example(parts=[[1, 2], [3, 4, 5]], page=1, more=0, by=None, limit=1, merged_between=False)  # a page beyond the limit
def test_like_a_list(
    parts: list[list[int]], page: int, more: int, by: str | None, limit: int | None, merged_between: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_store, "PAGE_BYTES", page)
        store, rows = RowStore(), []
        for part in parts:
            store.append(columns(part), more=more)
            rows += part
            assert len(store) == len(rows)
            if merged_between:
                store.merge(by=by)
                rows = sorted(rows) if by else rows
        assert torch.equal(
            torch.cat([b["rank"] for b in store.blocks] or [torch.zeros(0)]).long(), torch.tensor(rows).long()
        )
        store.merge(by=by, limit=limit)
    expected = columns((sorted(rows) if by else rows)[:limit])
    assert len(store.blocks) == min(len(rows), 1)
    for block in store.blocks:
        assert torch.equal(block["rank"], expected["rank"])
        assert torch.equal(block["row"], expected["row"])


def test_what_is_given_is_copied() -> None:
    store, given_ = RowStore(), columns([1, 2])
    store.append(given_)
    given_["rank"].zero_()
    assert store.blocks[0]["rank"].tolist() == [1, 2]


def test_rows_known_to_follow_share_a_page() -> None:
    store = RowStore()
    store.append(columns([1]), more=2)
    store.append(columns([2, 3]))
    assert len(store.blocks) == 1
    assert store.shapes == {"rank": (), "row": (2,)}
