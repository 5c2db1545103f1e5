"""Dry runs: a few images per set, spread over all of it."""

from dataclasses import replace
from itertools import pairwise

from oodlit.base.errors import InvalidArgumentError
from oodlit.datamodules.stream import Source, Stream
from oodlit.datamodules.subsets import SubsetSource

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


class ThinnedSource(SubsetSource):
    """At most `count` samples of a source, spread over it.

    Args:
        source: The samples.
        count: Number of samples to keep, >= 1.
    """

    def __init__(self, source: Source, count: int) -> None:
        super().__init__(source, spread(len(source), count))
        self.whole_size = len(source)


def whole_size(stream: Stream) -> int:
    """Number of images of a stream before thinning, including images that are missing from a feature cache."""
    return int(getattr(stream.source, "whole_size", len(stream)))


def thinned(stream: Stream, count: int | None) -> Stream:
    """The stream with at most `count` images; None keeps all.

    Raises:
        InvalidArgumentError: `count` is not an integer, or below 1.
    """
    value: object = count
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidArgumentError(
            f"expected max_images to be an integer of at least 1, or None for all; got {count!r}"
        )
    if count is None or count >= len(stream):
        return stream
    return replace(stream, source=ThinnedSource(stream.source, count))
