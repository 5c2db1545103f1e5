"""Subsets of a source: chosen samples, without another copy of the images."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.stream import Sample, Source, find_samples, pick_samples


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
