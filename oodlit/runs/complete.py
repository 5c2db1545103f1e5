"""Check that every sample of a pipeline was read exactly once."""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from oodlit.base.errors import DataError
from oodlit.base.processes.distributed import Group, gather_objects, gather_rows
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream

SHOWN = 3
"""Number of keys that a message lists."""


def check_complete(stream: Stream, group: Group) -> None:
    """Check that all processes together have read every sample of a pipeline once. All processes must call it.

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
    """Names of missing and repeated keys; a single process reads the pipeline once more to find them."""
    source = stream.source
    assert isinstance(source, PipelineSource)
    times = dict(zip(values.numpy().view(np.uint64).tolist(), counts.tolist(), strict=True))
    given = Counter(sample.key for sample in source.read(0, 2 * len(source)))
    digests = {key: key_digest(stream.full_key(key)) for key in given}
    repeated = sorted(key for key, digest in digests.items() if times.get(digest, 0) > 1)
    missing = sorted(key for key, digest in digests.items() if digest not in times)
    parts = [f"expected {len(source)} samples (count), each once; all processes together read {int(counts.sum())}"]
    parts += [f"keys read more than once: {len(repeated)} ({_shown(repeated)})"] if repeated else []
    parts += [f"keys never read: {len(missing)} ({_shown(missing)})"] if missing else []
    if len(given) != len(source):
        parts.append(f"a single process reads {len(given)} different keys from the pipeline")
    return (
        f"data set {stream.name!r}: {'; '.join(parts)}. Split the pipeline over processes and workers"
        " (nodesplitter=webdataset.split_by_node), limit the pipeline to one epoch, or correct count"
    )


def _shown(keys: list[str]) -> str:
    return ", ".join(map(repr, keys[:SHOWN])) + (", ..." if len(keys) > SHOWN else "")
