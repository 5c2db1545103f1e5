"""Sources of samples in memory, in map-style data sets, and in files on disk."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError, PreprocessingError
from oodlit.base.sizes import read_file
from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.keys import escape_key, repeated, unescape_key
from oodlit.datamodules.stream import Sample
from oodlit.datamodules.subsets import SampleFacts


class MemorySource:
    """Samples in memory.

    Args:
        samples: The samples; keys must be unique.

    Raises:
        InvalidArgumentError: A key occurs twice.

    Example:
        >>> [sample.key for sample in MemorySource([Sample("a", b""), Sample("b", b"")]).read(1, 2)]
        ['b']
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)
        _check_unique([sample.key for sample in self.samples])

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1."""
        return iter(self.samples[start:stop])


class IndexedSource(ABC):
    """A source that makes each sample from its position alone."""

    @abstractmethod
    def __len__(self) -> int:
        """Exact number of samples."""

    @abstractmethod
    def key(self, index: int) -> str:
        """Key of one sample."""

    @abstractmethod
    def sample(self, index: int) -> Sample:
        """One sample."""

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1."""
        return map(self.sample, range(start, min(stop, len(self))))

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Samples at these positions."""
        return map(self.sample, positions)

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        return (self.sample(index) for index in range(len(self)) if self.key(index) in keys)


@runtime_checkable
class MapDataset(Protocol):
    """A data set with a length and items (image, label)."""

    def __len__(self) -> int:
        """Number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Item `index`: (image, label)."""


class DatasetSource(IndexedSource):
    """Samples from a map-style data set of (image, label), such as those of torchvision.

    Images are PIL images or tensors; tensors are used unchanged, without a transform. Items that raise `OSError` or
    `DataError` count as unreadable samples; other errors become a `PreprocessingError` that names the item.

    Args:
        dataset: The data set; pickled to the workers.
        keys: Key of every item. None (default) = "000000", "000001", ...
        groups: Group of every item. None (default) = no groups.
        labelled: If False, every label is -1, as for OOD sets, whose labels are unrelated to the classifier. Items may
            then be images alone.

    Raises:
        InvalidArgumentError: The data set is a loader or has no length or items, the number of keys or groups differs
            from the length, or a key occurs twice.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        keys: Sequence[str] | None = None,
        groups: Sequence[int] | None = None,
        labelled: bool = True,
    ) -> None:
        if not isinstance(dataset, MapDataset):
            hint = "pass loader.dataset" if hasattr(dataset, "dataset") else "define both"  # type: ignore[unreachable]
            raise InvalidArgumentError(
                f"DatasetSource: expected a data set with __len__ and __getitem__, got {type(dataset).__name__}; {hint}"
            )
        self.dataset, self.keys, self.groups, self.labelled = dataset, keys, groups, labelled
        _check_lengths("DatasetSource", len(dataset), "item", keys=keys, groups=groups)
        if keys is not None:
            _check_unique(keys)

    def __len__(self) -> int:
        """Number of items."""
        return len(self.dataset)

    def key(self, index: int) -> str:
        """Key of one item."""
        return f"{index:06d}" if self.keys is None else self.keys[index]

    def sample(self, index: int) -> Sample:
        """One item as a sample."""
        group = -1 if self.groups is None else int(self.groups[index])
        origin = f"item {index} of {type(self.dataset).__name__}"
        try:
            item = self.dataset[index]
        except (OSError, DataError) as error:
            return Sample(self.key(index), b"", group=group, error=str(error) or type(error).__name__, origin=origin)
        except Exception as error:
            raise PreprocessingError(
                f"{origin}, key {self.key(index)!r}: the data set failed ({describe_error(error)})"
            ) from error
        parts = item if isinstance(item, tuple | list) else (item,)
        label: Any = -1 if not self.labelled else parts[1] if len(parts) > 1 else None
        if not parts or not isinstance(parts[0], Image.Image | Tensor) or not hasattr(label, "__int__"):
            got = f"got ({', '.join(type(part).__name__ for part in parts)})"
            if not self.labelled:
                raise InvalidArgumentError(f"{origin}: expected a PIL image or a tensor, alone or in a pair, {got}")
            raise InvalidArgumentError(
                f"{origin}: expected a pair (image, label) of a PIL image or tensor and a class index, {got}. If the"
                " labels are not those of the classifier, as in an OOD set, pass labelled=False; the items may then be"
                " images alone"
            )
        return Sample(self.key(index), parts[0], int(label), group, origin=origin)


class FileSource(IndexedSource):
    """Samples from image files, which are read when needed.

    Args:
        paths: The files.
        labels: Class index of every file; None (default) = no labels.
        groups: Group of every file; None (default) = no groups.
        root: Keys are the escaped paths relative to this folder. None (default) = the longest common folder.

    Raises:
        InvalidArgumentError: The number of labels or groups differs from that of the files, a file is outside `root`,
            or a file occurs twice.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        labels: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        root: str | Path | None = None,
    ) -> None:
        _check_lengths("FileSource", len(paths), "file", labels=labels, groups=groups)
        names = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - resolve() would follow links
        if root is None:
            root = os.path.commonpath([os.path.dirname(name) for name in names]) if names else ""  # noqa: PTH120
        root = os.path.abspath(root)  # noqa: PTH100
        if outside := [name for name in names if not Path(name).is_relative_to(root)]:
            raise InvalidArgumentError(f"FileSource: {outside[0]!r} is outside root {root!r}; pass another root")
        self.paths = names
        self.keys = [escape_key(Path(name).relative_to(root).as_posix()) for name in names]
        self.labels, self.groups = labels, groups
        _check_unique(self.keys)

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def key(self, index: int) -> str:
        """Key of one file."""
        return self.keys[index]

    def facts(self) -> Iterator[SampleFacts]:
        """Path, label and group of every file."""
        nothing = [-1] * len(self)
        for key, label, group in zip(self.keys, self.labels or nothing, self.groups or nothing, strict=True):
            yield SampleFacts(unescape_key(key), label, group)

    def sample(self, index: int) -> Sample:
        """One file as a sample."""
        label = -1 if self.labels is None else int(self.labels[index])
        group = -1 if self.groups is None else int(self.groups[index])
        path = self.paths[index]
        try:
            data = read_file(path)
        except OSError as error:
            return Sample(self.keys[index], b"", label, group, error=f"cannot be read: {error}", origin=path)
        return Sample(self.keys[index], data, label, group, origin=path)


def _check_lengths(owner: str, count: int, what: str, **columns: Sequence[object] | None) -> None:
    for name, values in columns.items():
        if values is not None and len(values) != count:
            raise InvalidArgumentError(
                f"{owner}: expected {name} to have one entry per {what}, got {len(values)} for {count} {what}s"
            )


def _check_unique(keys: Sequence[str]) -> None:
    if twice := repeated(keys):
        raise InvalidArgumentError(f"key {twice[0]!r} occurs twice; keys must be unique")
