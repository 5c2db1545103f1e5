"""Batches of a pipeline, and the proof that every sample came once."""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.loader import Batch, StreamBatches, StreamLoader
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.distributed import Group, gather_objects, gather_rows
from oodlit.errors import DataError, OodlitError, PreprocessingError

SHOWN = 3
"""Keys that a message names."""


class PipelineLoader(StreamLoader):
    """Batches of what a pipeline gives to this process; how many there are is known at the end only."""

    def _kind(self) -> type[StreamBatches]:
        return PipelineBatches

    def __len__(self) -> int:
        """Unknown.

        Raises:
            TypeError: Always, as from an iterable without a length.
        """
        raise TypeError("a pipeline does not tell how many of its samples this process gets")

    def __iter__(self) -> Iterator[Batch]:
        """Read the share of this process once, and keep count."""
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        source.seen = array("Q")
        yield from self._counted(source.seen)


@dataclass(eq=False)
class PipelineBatches(StreamBatches):
    """Batches of what a pipeline gives to one worker."""

    def _read(self, positions: range) -> Iterator[Batch]:
        rows, like, count = self._rows(self.batch_size), None, 0
        for sample in self._share():
            count += 1
            if count > len(self.stream):
                raise DataError(
                    f"stream {self.stream.name!r}: a single worker got more than the {len(self.stream)} samples that"
                    " were announced; does the pipeline repeat or resample? Give it one epoch, or the right count"
                )
            if (image := self._add(rows, sample)) is not None:
                like = image
            if count % self.batch_size == 0:
                yield self._batch(rows, like)
                rows = self._rows(self.batch_size)
        if count % self.batch_size:
            yield self._batch(rows, like)

    def _share(self) -> Iterator[Sample]:
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        try:
            yield from source.share()
        except OodlitError as error:
            raise type(error)(f"stream {self.stream.name!r}: {error}") from error
        except Exception as error:
            raise PreprocessingError(
                f"stream {self.stream.name!r}: the pipeline failed: {describe_error(error)}"
            ) from error


def check_complete(stream: Stream, group: Group) -> None:
    """Prove that all processes together have seen every sample of a pipeline once. All processes call it.

    Streams of other sources prove it while they are read.

    Raises:
        DataError: Samples are missing or came more than once; names keys.
    """
    source = stream.source
    if not isinstance(source, PipelineSource):
        return
    mine = torch.from_numpy(np.frombuffer(source.seen, dtype=np.int64).copy())
    seen = gather_rows(group, mine, gather_objects(group, len(mine)))
    values, counts = torch.unique(seen, return_counts=True)
    if len(seen) == len(source) and len(values) == len(seen):
        return
    is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    (message, *_) = gather_objects(group, _what_is_wrong(stream, values, counts) if is_first else "")
    raise DataError(message)


def _what_is_wrong(stream: Stream, values: Tensor, counts: Tensor) -> str:
    """Names of missing and repeated keys; the pipeline is read once more for them, as by a single process."""
    source = stream.source
    assert isinstance(source, PipelineSource)
    times = dict(zip(values.numpy().view(np.uint64).tolist(), counts.tolist(), strict=True))
    given = Counter(sample.key for sample in source.read(0, 2 * len(source)))
    digests = {key: key_digest(stream.full_key(key)) for key in given}
    repeated = sorted(key for key, digest in digests.items() if times.get(digest, 0) > 1)
    missing = sorted(key for key, digest in digests.items() if digest not in times)
    parts = [f"{int(counts.sum())} samples came over all processes and workers, {len(source)} were announced"]
    parts += [f"{len(repeated)} keys came more than once ({_shown(repeated)})"] if repeated else []
    parts += [f"{len(missing)} keys never came ({_shown(missing)})"] if missing else []
    if len(given) != len(source):
        parts.append(f"the pipeline itself gives {len(given)} different keys to a single process")
    return (
        f"stream {stream.name!r}: {'; '.join(parts)} - cut the pipeline over processes and workers"
        " (nodesplitter=webdataset.split_by_node), let it give one epoch, or mend the count"
    )


def _shown(keys: list[str]) -> str:
    return ", ".join(map(repr, keys[:SHOWN])) + (", ..." if len(keys) > SHOWN else "")
