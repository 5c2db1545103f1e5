"""Rows of the training images, chosen by the hash of their keys; what the samples and the bank share."""

import weakref
from abc import abstractmethod

import torch
from torch import Tensor

from oodlit.checks import check_same_shape
from oodlit.detectors.statistics.base import Statistic
from oodlit.detectors.statistics.hashes import hash_rows
from oodlit.detectors.statistics.row_store import PAGE_BYTES, RowStore
from oodlit.distributed import Group, all_sum, gather_objects, gather_rows, is_distributed
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs, version_of

ROWS = 512
"""Images taken at a time: few enough that what is computed of them is still in the cache when it is stored."""


class SmallestHashes(Statistic):
    """The `rows` images with the smallest hash of their key (all if `rows` is None), kept on the CPU.

    The hash decides, not the position: any batch size, order, number of workers and of processes keeps the same rows,
    and the rows come out in the same order. Where all are kept and none asks for the order, they stay as they came.
    Once there are enough, `rows_of` is asked only for images that may still be kept: 5000 of 1.28 million ask for about
    45 000.
    """

    rows_at_a_time = None
    is_shared = False
    """Whether the processes of a machine hold the rows of all processes in the same memory."""

    def __init__(self, rows: int | None = None, *, ordered: bool = True) -> None:
        super().__init__(sync_on_compute=False)
        if rows is not None and rows < 1:
            raise InvalidArgumentError(f"{type(self).__name__}: rows={rows}; at least 1 is needed, or None for all")
        if rows is not None and not ordered:
            raise InvalidArgumentError(f"{type(self).__name__}: rows={rows} are chosen by order; use ordered=True")
        self.rows = rows
        self.ordered = ordered
        self.seen: Tensor
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self._store = RowStore()
        self._largest: int | None = None
        self._handed_out: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._store, self._largest = RowStore(), None

    @abstractmethod
    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """The columns to keep, each with one row per image."""

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        left = len(outputs)
        for start in range(0, len(outputs), ROWS):
            part = outputs if left <= ROWS and start == 0 else outputs.select(slice(start, start + ROWS))
            left -= len(part)
            self.seen += len(part)
            hashes = hash_rows(part) if self.ordered else None
            if hashes is not None and self._largest is not None:  # what cannot be kept is not computed
                small = hashes <= self._largest
                part, hashes = (part, hashes) if bool(small.all()) else (part.select(small), hashes[small])
            if not len(part):
                continue
            columns = {name: value.detach().cpu() for name, value in self.rows_of(part).items()}
            columns |= {} if hashes is None else {"hash": hashes}
            shapes = {name: tuple(value.shape[1:]) for name, value in columns.items()}
            if shapes != (self._store.shapes or shapes):
                raise InvalidArgumentError(
                    f"{type(self).__name__}: a batch has other shapes than those before: {shapes}"
                )
            self._store.append(columns, more=left if self.rows is None else min(left, 2 * self.rows))
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        if self.rows is not None and len(self._store) >= 2 * self.rows:
            self._compact()

    def merge(self, other: "SmallestHashes") -> None:
        """Take in the rows of `other`."""
        other._compact()
        if other._store.shapes:
            check_same_shape(self, self._store.shapes or other._store.shapes, other._store.shapes)
        self.seen += other.seen
        for block in other._store.blocks:
            self._store.append(block)
        self._drop_surplus()

    def _compact(self) -> None:
        """Merge the rows into one block, sorted by hash and cut to `rows`."""
        self._store.merge(by="hash" if self.ordered else None, limit=self.rows)
        if self.rows is not None and len(self._store) == self.rows:
            self._largest = int(self._store.blocks[0]["hash"][-1])

    def _bytes_at_peak(self, num_train: int, bytes_per_row: int) -> int:
        """Memory while rows are merged: for the rows that came in (at most twice those kept), their copy, a page."""
        if self.rows is not None:
            rows = min(2 * self.rows, num_train) + min(self.rows, num_train)
        else:
            # Unordered, each page is freed once it is copied; but a process also receives the rows of the others.
            rows = num_train if not self.ordered and not is_distributed() else 2 * num_train
        return rows * bytes_per_row + min(PAGE_BYTES, rows * bytes_per_row)

    def synchronize(self, group: Group) -> None:
        """Union of the rows of all processes, cut to `rows` again."""
        self._compact()
        local = dict(self._store.blocks[0]) if len(self._store) else {}
        layouts = gather_objects(group, {n: (v.dtype, tuple(v.shape)) for n, v in local.items()})
        if len(layouts) == 1:
            return
        self.seen = all_sum(group, self.seen)
        layout = next((layout for layout in layouts if layout), None)
        if layout is None:
            return
        sizes = [next(iter(layout.values()))[1][0] if layout else 0 for layout in layouts]
        self._store = RowStore()
        merged = {}
        for name, (dtype, shape) in layout.items():
            mine = local.pop(name, torch.empty((0, *shape[1:]), dtype=dtype))
            merged[name] = gather_rows(group, mine, sizes, is_shared=self.is_shared)
        self._store = RowStore(merged)
        self._compact()

    @property
    def num_samples(self) -> int:
        """Number of training images seen (not kept)."""
        return int(self.seen)

    @property
    def num_kept(self) -> int:
        """Number of rows kept."""
        return len(self._store) if self.rows is None else min(self.rows, len(self._store))

    def column(self, name: str, *, ordered: bool = True) -> Tensor:
        """One column of the kept rows, on the CPU.

        Args:
            name: A name that `rows_of` gives.
            ordered: Whether the rows are in the order of their hashes; False takes them as they lie, which is cheaper.

        Raises:
            InvalidArgumentError: No row was seen, or there is no such column.
        """
        if ordered or len(self._store) > self.num_kept:
            self._compact()
        else:
            self._store.merge()
        if name not in self._store.shapes:
            kept = ", ".join(self._store.shapes)
            remedy = (
                f"name them in `sample_fields` or `needs` (kept: {kept})" if kept else "fit on a non-empty training set"
            )
            raise InvalidArgumentError(f"{type(self).__name__}: no {name} were seen or kept; {remedy}")
        column = self._store.blocks[0][name]
        for each, value in self._store.blocks[0].items():  # `outputs` of a sample hands out several
            if each not in self._handed_out or self._handed_out[each][0]() is not value:
                self._handed_out[each] = (weakref.ref(value), version_of(value))
        return column

    def changed_columns(self) -> list[str]:
        """Which of the columns that were handed out were written to since."""
        alive = {
            name: (tensor, version)
            for name, (ref, version) in self._handed_out.items()
            if (tensor := ref()) is not None
        }
        return [name for name, (tensor, version) in alive.items() if version_of(tensor) != version]
