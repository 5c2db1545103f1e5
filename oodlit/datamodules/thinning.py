"""Trials: a few images per set, spread over the whole set."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import NAMES_OF_LABELS
from oodlit.datamodules.shards.locate import join
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.shards.remote import is_url
from oodlit.datamodules.sources import DatasetSource, MemorySource
from oodlit.datamodules.stream import Source, Stream
from oodlit.datamodules.subsets import FactsSource, SubsetSource, facts_of

MAX_TO_CLASSIFY = 100_000
"""Maximum number of samples in shards whose classes are read ahead, which takes seconds."""
_GOLDEN = 0x9E3779B9  # fraction of 2**32: multiples of the golden ratio never fall into a period


def spread(total: int, count: int) -> list[int]:
    """Choose `count` ascending positions among `total`, one in each of `count` equal parts.

    The place within a part varies: if every sixth image has the same class, equal steps of six would find only one
    class. The same arguments always return the same positions; all positions if `count` is larger.

    Example:
        >>> spread(100, 5), spread(3, 5)
        ([0, 32, 44, 77, 89], [0, 1, 2])
    """
    if count >= total:
        return list(range(total))
    starts = [part * total // count for part in range(count + 1)]
    return [
        start + ((part * _GOLDEN % 2**32) * (stop - start) >> 32) for part, (start, stop) in enumerate(pairwise(starts))
    ]


def spread_over_classes(classes: Sequence[int], count: int) -> list[int]:
    """Choose positions as `spread` does, with at least one of every class if there are at most `count` classes.

    A class that `spread` misses replaces an image of the class with the most chosen images.

    Args:
        classes: Class of every sample; -1 = none.
        count: Number of positions to choose, >= 1.

    Example:
        >>> spread(8, 3), spread_over_classes([0, 0, 0, 0, 0, 0, 1, 2], 3)
        ([0, 3, 5], [0, 6, 7])
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    chosen: defaultdict[int, list[int]] = defaultdict(list)
    for position, code in enumerate(classes):
        members[code].append(position)
    for position in spread(len(classes), count):
        chosen[classes[position]].append(position)
    if len(members) - (-1 in members) <= count:
        for code in sorted(members.keys() - chosen.keys() - {-1}):
            most = -1 if chosen.get(-1) else max(chosen, key=lambda name: len(chosen[name]))
            del chosen[most][len(chosen[most]) // 2]
            chosen[code] = [members[code][len(members[code]) // 2]]
    return sorted(position for positions in chosen.values() for position in positions)


class ThinnedSource(SubsetSource):
    """At most `count` samples of a source, spread over it.

    Args:
        source: The samples.
        count: Number of samples to keep, >= 1.
        classes: Class of every sample, at least one image of which is kept where possible; None = unknown.
    """

    def __init__(self, source: Source, count: int, classes: Sequence[int] | None = None) -> None:
        super().__init__(source, spread(len(source), count) if classes is None else spread_over_classes(classes, count))
        self.whole_size = len(source)


def whole_size(stream: Stream) -> int:
    """Number of images of the complete set: before thinning, with images that a cache or a published set is missing."""
    return max(stream.expected_count or 0, int(getattr(stream.source, "whole_size", len(stream))))


def thinned(stream: Stream, count: int | None) -> Stream:
    """The stream with at most `count` images; None keeps all.

    At least one image of every class is kept if there are at most `count` classes and the classes of all images are
    known without reading images.

    Raises:
        InvalidArgumentError: `count` is not an integer, or below 1.
    """
    value: object = count
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidArgumentError(f"expected max_images to be an integer >= 1, or None for all; got {count!r}")
    if count is None or count >= len(stream):
        return stream
    classes = known_classes(stream) if 1 < len(stream.class_names) <= count else None
    return replace(stream, source=ThinnedSource(stream.source, count, classes))


def known_classes(stream: Stream) -> Sequence[int] | None:
    """Return the label or group of every sample, -1 = none; None if this requires to read images."""
    source, by_label = stream.source, stream.role in NAMES_OF_LABELS
    if isinstance(source, DatasetSource) and not by_label:
        return source.groups
    if not _has_facts(source):
        return None
    try:
        return [fact.label if by_label else fact.group for fact in facts_of(source)]
    except (DataError, OSError):  # the run reaches the damage later, and reports it
        return None


def _has_facts(source: Source) -> bool:
    """Whether a source, and every source that it reads, knows labels and groups without reading images."""
    if isinstance(source, ShardSource):
        remote = (is_url(join(source.folder, record.file)) for record in source.info.shards)
        return len(source) <= MAX_TO_CLASSIFY and not any(remote)
    inner = [one for name in ("source", "images") if isinstance(one := getattr(source, name, None), Source)]
    return isinstance(source, MemorySource) or (isinstance(source, FactsSource) and all(map(_has_facts, inner)))
