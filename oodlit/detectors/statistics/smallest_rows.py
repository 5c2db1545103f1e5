"""Rows with the smallest values of one column, collected in batches on the CPU with little extra memory."""

import torch
from torch import Tensor

from oodlit.detectors.statistics.row_store import Columns

LEAST_ROOM = 1024
"""Minimum number of spare rows before the largest rows are dropped; fewer if `limit` is smaller."""
STRIP_BYTES = 2**23
"""Part of a column to copy at a time during sorting."""


class SmallestRows:
    """Columns of equal length, keeping the `limit` rows with the smallest values in the column `by`.

    New rows are appended to the kept ones, with room for an eighth more. When it is full, the largest are dropped and
    rows from the end take their places: rows are never copied as a whole, not even for sorting.

    Args:
        limit: Number of rows to keep.
        by: Name of a column of integers.
        columns: Initial rows, which are not copied and must not be modified elsewhere.

    Example:
        >>> rows = SmallestRows(2, by="rank")
        >>> rows.append({"rank": torch.tensor([5, 2])})
        >>> rows.append({"rank": torch.tensor([1])})
        >>> rows.merge(by="rank")
        >>> rows.blocks[0]["rank"].tolist()
        [1, 2]
    """

    def __init__(self, limit: int, *, by: str, columns: Columns | None = None) -> None:
        self.limit, self.by = limit, by
        self.bound: int | None = None
        """The largest value that may still be kept; None until rows were dropped."""
        self._columns: dict[str, Tensor] = dict(columns or {})
        self._length = len(self._columns[by]) if self._columns else 0
        self._is_sorted = self._is_shared = False

    def __len__(self) -> int:
        """Number of rows; up to `capacity` before merging."""
        return self._length

    @property
    def capacity(self) -> int:
        """Largest number of rows in memory."""
        return self.limit + max(self.limit // 8, min(self.limit, LEAST_ROOM))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of a row of every column; empty before the first row."""
        return {name: tuple(column.shape[1:]) for name, column in self._columns.items()}

    @property
    def blocks(self) -> list[dict[str, Tensor]]:
        """The rows, as one part; no part before the first row."""
        if self._is_shared:
            return [self._columns]  # the same tensors at every call, so that users of them can detect changes
        return [{name: column[: self._length] for name, column in self._columns.items()}] if self._columns else []

    def append(self, columns: Columns) -> None:
        """Copy rows: one per image of every column, the same names, dtypes and row shapes at every call."""
        start, rows = 0, len(columns[self.by])
        while start < rows:
            if self._length == self.capacity:
                self._drop()
            count = min(rows - start, self.capacity - self._length)
            if self._is_shared or len(self._columns.get(self.by, ())) < self._length + count:
                self._make_room(columns)
            for name, column in columns.items():
                self._columns[name][self._length : self._length + count] = column[start : start + count]
            start, self._length, self._is_sorted = start + count, self._length + count, False

    def merge(self, *, by: str | None = None) -> None:
        """Drop all but the smallest rows. The contents of `blocks` are never written to afterwards.

        Args:
            by: Column to sort by; None keeps the order.
        """
        if self._length > self.limit:
            self._drop()
        if by is not None and not self._is_sorted:
            self._sort()
        if not self._is_shared and self._columns:
            # A few rows would keep a lot of spare room alive, which would be copied and saved with them.
            is_small = 2 * self._length < len(self._columns[self.by])
            self._columns = {name: rows.clone() if is_small else rows for name, rows in self.blocks[0].items()}
            self._is_shared = True

    def _make_room(self, like: Columns) -> None:
        """Make room for appending rows; on a copy if the current ones are shared."""
        for name, column in like.items():
            # Allocate all of it in one step: the system provides memory only when it is written to.
            room = torch.empty((self.capacity, *column.shape[1:]), dtype=column.dtype)
            if self._length:
                room[: self._length] = self._columns[name][: self._length]
            self._columns[name] = room
        self._is_shared = False

    def _drop(self) -> None:
        """Drop the largest rows; rows from the end take their places."""
        values, order = self._columns[self.by][: self._length].sort(stable=True)
        kept, dropped = order[: self.limit], order[self.limit :]
        free, moved = dropped[dropped < self.limit], kept[kept >= self.limit]
        for column in self._columns.values():
            column[free] = column[moved]
        self.bound, self._length, self._is_sorted = int(values[self.limit - 1]), self.limit, False

    def _sort(self) -> None:
        """Sort the rows, in place unless they are shared."""
        order = self._columns[self.by][: self._length].argsort(stable=True) if self._columns else None
        for name, column in list(self._columns.items()):
            rows = column[: self._length]
            if self._is_shared:
                self._columns[name] = rows[order]
                continue
            flat = rows.reshape(len(rows), rows[:1].numel())
            for strip in torch.split(flat, max(1, STRIP_BYTES // (len(rows) * column.element_size())), dim=1):
                strip.copy_(strip[order])
        self._is_sorted = True
