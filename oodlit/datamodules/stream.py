"""Streams of images: a name, a role in a run, and a source of samples."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

from PIL import Image
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.datamodules.keys import printable, repeated


@dataclass(frozen=True, eq=False)
class Sample:
    """One image from a source.

    Args:
        key: Identity within the stream; unique.
        image: The bytes of an image file, a PIL image, or a tensor that is used unchanged.
        label: Class index of the classifier; -1 = none.
        group: Index of the OOD class, unit test or kind of shift; -1 = none.
        error: None, or the reason why this sample cannot be used. The reader's policy decides whether it is an error or
            skipped and reported.
        origin: Where the sample is stored (shard, file), for messages.
    """

    key: str
    image: bytes | Image.Image | Tensor
    label: int = -1
    group: int = -1
    error: str | None = None
    origin: str = ""


@runtime_checkable
class Source(Protocol):
    """A fixed sequence of samples that can be read from any position.

    The same positions always return the same samples. Sources are pickled to worker processes.
    """

    def __len__(self) -> int:
        """Exact number of samples."""

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1, in this order.

        Raises:
            DataError: The source is damaged, and it is unknown which samples are lost.
        """


@runtime_checkable
class LookupSource(Protocol):
    """A source that can find samples by key without reading all images."""

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples with these keys, in any order; unknown keys are ignored."""


@runtime_checkable
class PickingSource(Protocol):
    """A source that can read single samples without reading the samples between them."""

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """The samples at these ascending positions, in this order."""


@dataclass(frozen=True)
class Stream:
    """A named source with a role.

    Args:
        name: Name in keys, tables and loggers. Unique in a run; without "/".
        role: Role of the images.
        source: The samples.
        class_names: Names by index: of the labels for TRAIN and ID streams, of the groups (OOD classes, unit tests,
            kinds of shift) for the others. Empty (default) = those of the shards' manifest, if it has a matching role.
        prepared: Whether images already have the size of the network's input (ImageNet-C), so that the transform's
            resize and crop are skipped for images of that size.
        label_names: Names of the labels of a SHIFT stream, by index. Empty (default) = as for `class_names`. For TRAIN
            and ID streams these are the class names.
        split: For a POOL stream, a function from the key of an image to its part, see `PoolSplit`; None for others.
        expected_count: Number of images of the complete set, if images of a published set may be missing: results then
            name the set as incomplete. None (default) = that of the source.

    Raises:
        InvalidArgumentError: The name cannot be part of a key, a class name is not printable or occurs twice, or a pool
            has no split.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> stream = Stream("mine", Role.OOD, MemorySource([Sample("0", b""), Sample("1", b"")]))
        >>> len(stream), stream.full_key("0")
        (2, 'mine/0')
    """

    name: str
    role: Role
    source: Source
    class_names: tuple[str, ...] = ()
    prepared: bool = False
    label_names: tuple[str, ...] = ()
    split: Callable[[str], Any] | None = None
    expected_count: int | None = None

    def __post_init__(self) -> None:
        """Check the name, and fill in class names and label names."""
        check_name(self.name)
        if not hasattr(self.source, "read"):
            kind = type(self.source).__name__
            raise InvalidArgumentError(f"data set {self.name!r}: expected a source, got {kind}; use DatasetSource(...)")
        if not self.class_names:
            object.__setattr__(self, "class_names", _names_in_manifest(self.source, self.role))
        check_class_names(self.name, self.role, self.class_names)
        if (self.role is Role.POOL) != (self.split is not None):
            fault = (
                "role pool requires a split" if self.split is None else f"only role pool has a split, got {self.role}"
            )
            raise InvalidArgumentError(
                f"data set {self.name!r}: {fault}; create pools with severity_pool(stream, test_share=...)"
            )
        if self.role in NAMES_OF_LABELS:
            object.__setattr__(self, "label_names", self.class_names)
        elif self.role is Role.SHIFT and not self.label_names:
            names = getattr(getattr(self.source, "info", None), "label_names", ())
            object.__setattr__(self, "label_names", tuple(names))

    def __len__(self) -> int:
        """Exact number of samples."""
        return len(self.source)

    def full_key(self, key: str) -> str:
        """`dataset/key`, the identity of a sample in a run."""
        return f"{self.name}/{key}"


def _names_in_manifest(source: Source, role: Role) -> tuple[str, ...]:
    """Class names from the manifest of shards.

    Without them, a set with classes would be reported as one without, with a different headline metric.
    """
    info = getattr(source, "info", None)
    made_for = getattr(info, "role", None)
    if made_for is None or (made_for in NAMES_OF_LABELS) != (role in NAMES_OF_LABELS):
        return ()
    return tuple(getattr(info, "class_names", ()))


def check_name(name: str) -> None:
    """Check that a data set's name can be part of a key.

    Raises:
        InvalidArgumentError: It cannot.
    """
    if not name or name != name.strip() or "/" in name or not name.isprintable():
        raise InvalidArgumentError(
            f"data set name {name!r}: expected printable characters without '/' and without blanks at either end"
        )


def check_class_names(name: str, role: Role, class_names: Sequence[str]) -> None:
    """Check before a run that tables and files can show the class names.

    Raises:
        InvalidArgumentError: A name is empty, has control characters, or names two groups.
    """
    for odd in (text for text in class_names if not text.strip() or printable(text) != text):
        raise InvalidArgumentError(
            f"{name!r}: class name {odd!r} must not be empty or contain line breaks or other control characters"
        )
    if role not in NAMES_OF_LABELS and (twice := repeated(class_names)):
        raise InvalidArgumentError(f"{name!r}: two classes are called {twice[0]!r}; rename one")


def locate_range(ends: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, range]]:
    """Find the parts of a source that contain the positions start, ..., stop - 1.

    Args:
        ends: End of each part, ascending: the position after its last one.
        start: First position; negative = 0.
        stop: Position after the last one; positions beyond the last part are left out.

    Returns:
        Index of each part, and positions within it.

    Example:
        >>> list(locate_range([3, 5, 9], 2, 7))
        [(0, range(2, 3)), (1, range(0, 2)), (2, range(0, 2))]
    """
    position, stop = max(start, 0), min(stop, ends[-1] if ends else 0)
    while position < stop:
        index = bisect_right(ends, position)
        first = ends[index - 1] if index else 0
        last = min(stop, ends[index])
        yield index, range(position - first, last - first)
        position = last


def pick_samples(source: Source, positions: Sequence[int]) -> Iterator[Sample]:
    """Read samples at ascending positions; if the source cannot pick, neighbors are read together."""
    if isinstance(source, PickingSource):
        yield from source.pick(positions)
        return
    for _, run in groupby(enumerate(positions), key=lambda item: item[1] - item[0]):
        members = [position for _, position in run]
        yield from source.read(members[0], members[-1] + 1)


def find_samples(source: Source, keys: Collection[str]) -> dict[str, Sample]:
    """Find samples by key; sources without a lookup are read from the start.

    Raises:
        DataError: A key does not exist.
    """
    wanted = set(keys)
    found: dict[str, Sample] = {}
    samples = source.find(wanted) if isinstance(source, LookupSource) else source.read(0, len(source))
    for sample in samples:
        if sample.key in wanted:
            found[sample.key] = sample
            if len(found) == len(wanted):
                break
    if missing := sorted(wanted - found.keys()):
        raise DataError(
            f"{len(missing)} of {len(wanted)} keys (first: {missing[0]!r}) were not found in {type(source).__name__};"
            " check that the keys come from this data set"
        )
    return found
