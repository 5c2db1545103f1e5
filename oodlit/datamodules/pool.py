"""Several OOD sets as one, in which an image that two of them share counts once."""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby

from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import InvalidArgumentError


class DuplicateImageWarning(UserWarning):
    """Sets that are pooled share images."""


class PooledSource:
    """The images of several streams, every file once; the groups are the streams.

    All images are read once when the pool is made, to compare their bytes. An image that occurs again belongs to the
    first stream that has it.

    Args:
        streams: Streams whose images are files.

    Raises:
        InvalidArgumentError: No stream, or one gives decoded images.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        if not streams:
            raise InvalidArgumentError("PooledSource: no streams; at least one is needed")
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
        """Images start, ..., stop - 1; images that follow one another in a stream are read in one go."""
        wanted = self._kept[max(start, 0) : max(stop, 0)]
        runs = groupby(enumerate(wanted), key=lambda item: (item[1][0], item[1][1] - item[0]))
        for (number, _), run in runs:
            positions = [position for _, (_, position) in run]
            stream = self.streams[number]
            for sample in stream.source.read(positions[0], positions[-1] + 1):
                key = stream.full_key(sample.key)
                yield Sample(key, sample.image, sample.label, number, sample.error, sample.origin)


def pooled_stream(name: str, streams: Sequence[Stream]) -> Stream:
    """One stream of all images of `streams`, without repetitions.

    A pooled number depends on the sizes of the sets; the mean over sets does not, and is what papers report.

    Args:
        name: Name of the new stream.
        streams: Streams of one role.

    Raises:
        InvalidArgumentError: Roles differ, or as `PooledSource`.

    Warns:
        DuplicateImageWarning: Images occur more than once; the number and the first keys are given.
    """
    source = PooledSource(streams)
    roles = sorted({str(stream.role) for stream in streams})
    if len(roles) > 1:
        raise InvalidArgumentError(f"pooled_stream({name!r}): roles {', '.join(roles)}; streams of one role are needed")
    if source.repeated:
        warnings.warn(
            f"{name}: {len(source.repeated)} images occur more than once and count once, first"
            f" {', '.join(map(repr, source.repeated[:3]))}; {len(source)} are left",
            DuplicateImageWarning,
            stacklevel=2,
        )
    return Stream(name, streams[0].role, source, tuple(stream.name for stream in streams))


def _digest(stream: Stream, sample: Sample) -> bytes | None:
    """Checksum of an image's file; None for an unreadable image, which equals no other."""
    if sample.error is not None:
        return None
    if not isinstance(sample.image, bytes):
        raise InvalidArgumentError(
            f"stream {stream.name!r} gives decoded images; files are needed to tell whether two are the same"
        )
    return hashlib.sha256(sample.image).digest()
