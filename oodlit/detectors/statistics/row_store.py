"""Rows of several columns, collected in batches on the CPU."""

from collections.abc import Mapping

import torch
from torch import Tensor

PAGE_BYTES = 2**26
"""Size of a page. Memory of this size is returned to the system when freed; smaller pieces may not be."""

Columns = Mapping[str, Tensor]


class RowStore:
    """Columns of equal length, stored in pages until they are merged.

    Example:
        >>> store = RowStore()
        >>> store.append({"rank": torch.tensor([2, 0])})
        >>> store.append({"rank": torch.tensor([1])})
        >>> store.merge(by="rank", limit=2)
        >>> store.blocks[0]["rank"].tolist()
        [0, 1]
    """

    def __init__(self, columns: Columns | None = None) -> None:
        """Start without rows, or with `columns`, which are not copied and must not be modified elsewhere."""
        self._pages: list[dict[str, Tensor]] = [dict(columns)] if columns else []
        self._free = 0
        self._merged_by: str | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return sum(_length(page) for page in self._pages) - self._free

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of a row of every column; empty before the first row."""
        return {name: tuple(c.shape[1:]) for name, c in self._pages[0].items()} if self._pages else {}

    @property
    def blocks(self) -> list[dict[str, Tensor]]:
        """The rows in parts; a single part after merging."""
        full = self._pages[:-1] if self._free else self._pages
        last = [{name: c[: len(c) - self._free] for name, c in self._pages[-1].items()}] if self._free else []
        return [*full, *last]

    def append(self, columns: Columns, *, more: int = 0) -> None:
        """Copy rows.

        Args:
            columns: One row per image each; the same names, dtypes and row shapes at every call.
            more: Number of rows known to follow, for which memory is allocated too.
        """
        start, rows = 0, _length(columns)
        while start < rows:
            if self._free == 0:
                self._open(columns, rows - start + more)
            page, at = self._pages[-1], _length(self._pages[-1]) - self._free
            count = min(self._free, rows - start)
            for name, column in columns.items():
                page[name][at : at + count] = column[start : start + count]
            start, self._free = start + count, self._free - count
        self._merged_by = None

    def merge(self, *, by: str | None = None, limit: int | None = None) -> None:
        """Merge all rows into one block.

        Args:
            by: Sort by this column; None = leave the order.
            limit: Number of leading rows to keep, None = all.
        """
        kept = len(self) if limit is None else min(limit, len(self))
        if len(self.blocks) == 1 and self._free == 0 and kept == len(self) and by in (None, self._merged_by):
            return
        pages, places = self.blocks, self._places(by)
        self._pages, self._free, self._merged_by = [], 0, by
        merged = {name: c.new_empty((kept, *c.shape[1:])) for name, c in pages[0].items()} if pages else {}
        while pages:  # each page is freed after copying
            page, place = pages.pop(0), places.pop(0)
            stays = place < kept
            for name, column in page.items():
                if by is None:  # copying a range is several times faster than copying single rows
                    merged[name][int(place[0]) : int(place[-1]) + 1] = column[: max(0, kept - int(place[0]))]
                else:
                    merged[name][place[stays]] = column if bool(stays.all()) else column[stays]
        self._pages = [merged] if merged else []

    def _places(self, by: str | None) -> list[Tensor]:
        """Return the positions of each block's rows in the merged block."""
        place = torch.arange(len(self))
        if by is not None and len(self):
            order = torch.cat([block[by] for block in self.blocks]).sort(stable=True).indices
            place = torch.empty_like(order).scatter_(0, order, place)
        return list(torch.split(place, [_length(block) for block in self.blocks]))

    def _open(self, columns: Columns, rows: int) -> None:
        size = sum(c.element_size() * c[:1].numel() for c in columns.values())
        self._free = max(rows, PAGE_BYTES // max(size, 1))
        page = {name: torch.empty((self._free, *c.shape[1:]), dtype=c.dtype) for name, c in columns.items()}
        self._pages.append(page)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))
