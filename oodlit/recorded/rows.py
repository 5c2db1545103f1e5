"""Recorded outputs of a backbone as a source: the rows of one set, from memory or from disk."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.datamodules.keys import repeated, unescape_key
from oodlit.datamodules.stream import Sample
from oodlit.datamodules.subsets import SampleFacts


@dataclass(frozen=True, eq=False)
class Rows:
    """Outputs of some images; row i of every field belongs to the same image.

    Args:
        logits: Shape (rows, classes), floating point; None if not recorded.
        features: Shape (rows, features), floating point; None if not recorded.
        labels: Shape (rows,), int64; -1 = no label.
        groups: Shape (rows,), int64; -1 = no group.
        keys: Key of every image within its set.
    """

    logits: Tensor | None
    features: Tensor | None
    labels: Tensor
    groups: Tensor
    keys: Sequence[str]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def joined(self) -> Tensor:
        """Features and logits side by side in float32 at least, shape (rows, features + classes)."""
        parts = [part for part in (self.features, self.logits) if part is not None]
        return torch.cat([part.float() if part.dtype.itemsize < 4 else part for part in parts], dim=1)


class RowSource(ABC):
    """A source that can also return several samples together, as rows.

    The image of a sample is its features and logits.
    """

    width: int
    """Number of features; 0 = none were recorded."""
    num_classes: int
    """Number of logits; 0 = none were recorded."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Rows:
        """Rows start, ..., stop - 1."""

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1."""
        return samples_of(self.rows(start, stop))

    def facts(self) -> Iterator[SampleFacts]:
        """Key, label and group of every row."""
        for start in range(0, len(self), _AT_ONCE):
            rows = self.rows(start, start + _AT_ONCE)
            yield from map(SampleFacts, map(unescape_key, rows.keys), rows.labels.tolist(), rows.groups.tolist())

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        wanted = set(keys)
        for start in range(0, len(self), _AT_ONCE):
            rows = self.rows(start, start + _AT_ONCE)
            for place, key in enumerate(rows.keys):
                if key in wanted:
                    yield from samples_of(select(rows, slice(place, place + 1)))


class MemoryRows(RowSource):
    """Rows held in memory, or memory-mapped arrays.

    Args:
        rows: All rows.

    Raises:
        InvalidArgumentError: A field has the wrong shape, number of rows or dtype, or NaN or infinite values, or a key
            occurs twice.

    Example:
        >>> none = torch.full((2,), -1)
        >>> source = MemoryRows(Rows(torch.eye(2), None, none, none, ["a", "b"]))
        >>> len(source), source.num_classes, [sample.key for sample in source.read(1, 2)]
        (2, 2, ['b'])
    """

    def __init__(self, rows: Rows) -> None:
        if rows.logits is None and rows.features is None:
            raise InvalidArgumentError("recorded outputs: expected logits or features, got neither")
        for name in ("logits", "features"):
            if (value := getattr(rows, name)) is not None:
                _check_values(name, value, rows.keys)
        if twice := repeated(rows.keys):
            raise InvalidArgumentError(f"recorded outputs: key {twice[0]!r} occurs twice; keys must be unique")
        self.all = rows
        self.width, self.num_classes = (0 if part is None else part.shape[1] for part in (rows.features, rows.logits))

    def __len__(self) -> int:
        """Number of images."""
        return len(self.all)

    def rows(self, start: int, stop: int) -> Rows:
        """Rows start, ..., stop - 1."""
        return select(self.all, slice(max(start, 0), max(stop, 0)))


def select(rows: Rows, part: slice) -> Rows:
    """Select rows."""
    logits, features = (None if value is None else value[part] for value in (rows.logits, rows.features))
    return Rows(logits, features, rows.labels[part], rows.groups[part], rows.keys[part])


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Rows of all parts, at least one, in order."""
    logits, features = (
        None if getattr(parts[0], name) is None else torch.cat([getattr(part, name) for part in parts])
        for name in ("logits", "features")
    )
    labels, groups = (torch.cat([getattr(part, name) for part in parts]) for name in ("labels", "groups"))
    return Rows(logits, features, labels, groups, [key for part in parts for key in part.keys])


def samples_of(rows: Rows) -> Iterator[Sample]:
    """Rows one by one, as the samples of a source."""
    for key, values, label, group in zip(
        rows.keys, rows.joined, rows.labels.tolist(), rows.groups.tolist(), strict=True
    ):
        yield Sample(key, values, label, group)


_AT_ONCE = 8192


def _check_values(name: str, values: Tensor, keys: Sequence[str]) -> None:
    if values.ndim != 2 or not values.shape[1]:
        raise InvalidArgumentError(
            f"expected recorded {name} of shape (images, {name}), one vector per image; got {tuple(values.shape)}"
        )
    if not values.is_floating_point():
        raise InvalidArgumentError(f"expected recorded {name} in floating point, got {values.dtype}")
    for start in range(0, len(values), _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        if not bool(part.isfinite().all()):
            row = start + int((~part.isfinite()).any(dim=1).nonzero()[0])
            raise InvalidArgumentError(
                f"recorded {name} contain NaN or infinite values, first at {keys[row]!r} (row {row}); leave"
                " out such images, or check the backbone"
            )
