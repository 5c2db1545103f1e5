"""Subsets of a source: chosen samples, without another copy of the images, and some of the known classes."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from oodlit.base.errors import DataError
from oodlit.base.roles import KNOWN_CLASSES, Role
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.stream import Sample, Source, Stream, find_samples, pick_samples


class SampleFacts(NamedTuple):
    """What is known of a sample without its image.

    Args:
        path: Path of the file, as in the published archive where known.
        label: Class index; -1 = none.
        group: Index of the group; -1 = none.
    """

    path: str
    label: int
    group: int


@runtime_checkable
class FactsSource(Protocol):
    """A source that knows its samples without reading their images."""

    def facts(self) -> Iterator[SampleFacts]:
        """One entry per sample, in order."""


def facts_of(source: Source) -> Iterator[SampleFacts]:
    """Facts of all samples of a source, in order; other sources than a `FactsSource` are read."""
    if isinstance(source, FactsSource):
        yield from source.facts()
        return
    for sample in source.read(0, len(source)):
        yield SampleFacts(unescape_key(sample.key), sample.label, sample.group)


class SubsetSource:
    """Chosen samples of a source, in its order.

    Args:
        source: The samples.
        positions: Ascending positions of the samples to keep.
        labels: New label by old label; -1 or absent = no label. None (default) = labels stay.
        groups: New group by old group. None (default) = groups stay.
        group_by_label: Whether `groups` has the new group by old label, so that classes become groups.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> source = MemorySource([Sample(key, b"", label) for label, key in enumerate("abc")])
        >>> [(s.key, s.label) for s in SubsetSource(source, [0, 2], labels={0: 1, 2: 0}).read(0, 2)]
        [('a', 1), ('c', 0)]
    """

    def __init__(
        self,
        source: Source,
        positions: Sequence[int],
        *,
        labels: dict[int, int] | None = None,
        groups: dict[int, int] | None = None,
        group_by_label: bool = False,
    ) -> None:
        self.source, self.positions, self.labels, self.groups = source, positions, labels, groups
        self.group_by_label = group_by_label

    def __len__(self) -> int:
        """Number of kept samples."""
        return len(self.positions)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """The kept samples start, ..., stop - 1."""
        return map(self._changed, pick_samples(self.source, self.positions[max(start, 0) : max(stop, 0)]))

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """The kept samples at these positions."""
        return map(self._changed, pick_samples(self.source, [self.positions[position] for position in positions]))

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        return map(self._changed, find_samples(self.source, keys).values())

    def facts(self) -> Iterator[SampleFacts]:
        """Facts of the kept samples."""
        known = list(facts_of(self.source))
        for path, label, group in (known[position] for position in self.positions):
            yield SampleFacts(path, *self._renumbered(label, group))

    def _changed(self, sample: Sample) -> Sample:
        if self.labels is None and self.groups is None:
            return sample
        label, group = self._renumbered(sample.label, sample.group)
        return replace(sample, label=label, group=group)

    def _renumbered(self, label: int, group: int) -> tuple[int, int]:
        old = label if self.group_by_label else group
        return (
            label if self.labels is None else self.labels.get(label, -1),
            group if self.groups is None else self.groups.get(old, -1),
        )


def with_class_subset(
    streams: Sequence[Stream], names: Sequence[str], kept: Sequence[int], dropped_as: str | None = None
) -> list[Stream]:
    """Keep the images of some classes, and number these classes 0, 1, ....

    Streams of unknown classes stay as they are.

    Args:
        streams: Streams with labels in one order of classes.
        names: Names of all classes in this order; empty = unknown.
        kept: Indices of the classes to keep, ascending.
        dropped_as: Name of an OOD set with the ID images of the other classes; None (default) = they are left out.

    Raises:
        DataError: No image of a stream remains, or no ID image has another class.
    """
    found = [_subset(stream, names, kept) if stream.role in KNOWN_CLASSES else stream for stream in streams]
    if dropped_as is not None:
        inside = next(stream for stream in streams if stream.role is Role.ID)
        found.append(_dropped(inside, names, set(kept), dropped_as))
    return found


def _subset(stream: Stream, names: Sequence[str], kept: Sequence[int]) -> Stream:
    labels = {old: new for new, old in enumerate(kept)}
    positions = [position for position, fact in enumerate(facts_of(stream.source)) if fact.label in labels]
    if not positions:
        raise DataError(f"data set {stream.name!r}: no image has one of the {len(kept)} classes of class_subset")
    known = tuple(names[index] for index in kept) if names else ()
    class_names = stream.class_names if stream.role is Role.SHIFT else known
    source = SubsetSource(stream.source, positions, labels=labels)
    return replace(stream, source=source, class_names=class_names, label_names=known, expected_count=None)


def _dropped(inside: Stream, names: Sequence[str], kept: set[int], name: str) -> Stream:
    facts = list(facts_of(inside.source))
    positions = [position for position, fact in enumerate(facts) if fact.label >= 0 and fact.label not in kept]
    if not positions:
        raise DataError(f"dropped_as={name!r}: class_subset drops no image of {inside.name!r}; omit dropped_as")
    present = sorted({facts[position].label for position in positions})
    groups = {old: new for new, old in enumerate(present)}
    source = SubsetSource(inside.source, positions, labels={}, groups=groups, group_by_label=True)
    class_names = tuple(names[index] if names else str(index) for index in present)
    return Stream(name, Role.OOD, source, class_names)
