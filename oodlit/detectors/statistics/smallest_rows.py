"""Rows with the smallest values of one column, collected batch by batch on the CPU, in memory for hardly more."""

import torch
from torch import Tensor

from oodlit.detectors.statistics.row_store import Columns

LEAST_ROOM = 1024
"""Fewest rows that come in before the largest are dropped, where as many are kept."""
STRIP_BYTES = 2**23
"""How much of a column is copied at a time where rows are put in order."""


class SmallestRows:
    """Columns of equal length, of which the `limit` rows with the smallest value in the column `by` are kept.

    Rows come in behind those that are kept, into room for an eighth more. When it is full, the largest are dropped, and
    rows from the end take their places: no second copy of the rows is ever made, also not where they are sorted.

    Args:
        limit: How many rows are kept.
        by: Name of a column of integers.
        columns: Rows to start with; they are not copied, and nobody else may write to them.

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
        """The largest value that may still be kept; None before rows were dropped."""
        self._columns: dict[str, Tensor] = dict(columns or {})
        self._length = len(self._columns[by]) if self._columns else 0
        self._is_sorted = self._is_shared = False

    def __len__(self) -> int:
        """Number of rows; up to `capacity` before they are merged."""
        return self._length

    @property
    def capacity(self) -> int:
        """Largest number of rows that are held."""
        return self.limit + max(self.limit // 8, min(self.limit, LEAST_ROOM))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of a row of every column; empty before the first row."""
        return {name: tuple(column.shape[1:]) for name, column in self._columns.items()}

    @property
    def blocks(self) -> list[dict[str, Tensor]]:
        """The rows, as one part; no part before the first row."""
        if self._is_shared:
            return [self._columns]  # the same tensors at every call: whoever hands them out sees whether they change
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
        """Drop all but the smallest rows. What `blocks` gives from here on is never written to.

        Args:
            by: The column of that name, to sort by it; None leaves the order.
        """
        if self._length > self.limit:
            self._drop()
        if by is not None and not self._is_sorted:
            self._sort()
        if not self._is_shared and self._columns:
            # Few rows do not hold on to much room: it would be copied and saved with them.
            is_small = 2 * self._length < len(self._columns[self.by])
            self._columns = {name: rows.clone() if is_small else rows for name, rows in self.blocks[0].items()}
            self._is_shared = True

    def _make_room(self, like: Columns) -> None:
        """Let rows be written behind those that are there; to a copy where others read them."""
        for name, column in like.items():
            # All of it at once: the system gives no memory before it is written to, and nothing has to grow.
            room = torch.empty((self.capacity, *column.shape[1:]), dtype=column.dtype)
            if self._length:
                room[: self._length] = self._columns[name][: self._length]
            self._columns[name] = room
        self._is_shared = False

    def _drop(self) -> None:
        """Drop the largest rows; those from the end take the places of others."""
        values, order = self._columns[self.by][: self._length].sort(stable=True)
        kept, dropped = order[: self.limit], order[self.limit :]
        free, moved = dropped[dropped < self.limit], kept[kept >= self.limit]
        for column in self._columns.values():
            column[free] = column[moved]
        self.bound, self._length, self._is_sorted = int(values[self.limit - 1]), self.limit, False

    def _sort(self) -> None:
        """Put the rows in order: in place, unless others read them."""
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
