"""Combine several OOD sets into one, in which shared images count once."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from oodlit.base.checks import check_items
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.text.warn import warn
from oodlit.datamodules.stream import Sample, Stream, pick_samples


class DuplicateImageWarning(UserWarning):
    """Warning for images that occur in several pooled sets."""


class PooledSource:
    """The distinct images of several streams; the groups are the streams.

    All images are read once when the pool is created, to compare their bytes. A repeated image belongs to the first
    stream that contains it.

    Args:
        streams: Streams of image files.

    Raises:
        InvalidArgumentError: There are no streams, or one yields decoded images.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        check_items("PooledSource", "streams", streams, Stream)
        if not streams:
            raise InvalidArgumentError("PooledSource: expected at least one stream, got none")
        self.streams = tuple(streams)
        self.repeated: list[str] = []
        self._kept: list[tuple[int, int]] = []  # stream and position in it
        seen: set[bytes] = set()
        for number, stream in enumerate(self.streams):
            for position, sample in enumerate(stream.source.read(0, len(stream))):
                digest = _digest(stream, sample)
                if digest in seen:
                    self.repeated.append(stream.full_key(sample.key))
                else:
                    self._kept.append((number, position))
                    seen |= {digest} if digest else set()

    def __len__(self) -> int:
        """Number of distinct images."""
        return len(self._kept)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Images start, ..., stop - 1."""
        wanted = self._kept[max(start, 0) : max(stop, 0)]
        for number, members in groupby(wanted, key=itemgetter(0)):
            stream = self.streams[number]
            for sample in pick_samples(stream.source, [position for _, position in members]):
                key = stream.full_key(sample.key)
                yield Sample(key, sample.image, sample.label, number, sample.error, sample.origin)


def pooled_stream(name: str, streams: Sequence[Stream]) -> Stream:
    """Combine streams into one without repeated images.

    A pooled metric depends on the sizes of the sets; the mean over sets, which papers report, does not.

    Args:
        name: Name of the new stream.
        streams: Streams of one role.

    Raises:
        InvalidArgumentError: The streams have different roles, or as `PooledSource`.

    Warns:
        DuplicateImageWarning: Images occur more than once; the message has their number and the first keys.
    """
    source = PooledSource(streams)
    roles = sorted({str(stream.role) for stream in streams})
    if len(roles) > 1:
        raise InvalidArgumentError(f"pooled_stream({name!r}): expected streams of one role, got {', '.join(roles)}")
    if source.repeated:
        warn(
            f"data set {name!r}: {len(source.repeated)} images (first: {', '.join(map(repr, source.repeated[:3]))})"
            f" repeat earlier images; {len(source)} images remain",
            DuplicateImageWarning,
        )
    return Stream(name, streams[0].role, source, tuple(stream.name for stream in streams))


def _digest(stream: Stream, sample: Sample) -> bytes | None:
    """Checksum of an image file; None for an unreadable image, which is never a duplicate."""
    if sample.error is not None:
        return None
    if not isinstance(sample.image, bytes):
        raise InvalidArgumentError(
            f"pooled_stream removes repeated images by comparing their files, but data set {stream.name!r} returns"
            " decoded images; pass a folder, an archive or shards"
        )
    return hashlib.sha256(sample.image).digest()
