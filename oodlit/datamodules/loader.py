"""From a stream to batches: every sample exactly once, for any number of workers and processes."""

import warnings
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from oodlit.datamodules.batches import Batch, OnError, StreamBatches, Transform, reader_range
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.decoder import DeviceDecoder, check_settings
from oodlit.datamodules.failures import Failure
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.processes import check_movable, explained
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import NAMES_OF_LABELS


class StreamLoader:
    """Batches of one stream, in this process's share.

    The stream is cut into contiguous ranges, one per (rank, worker). Batches are formed by position within a range and
    partial ones are kept, so the length is exact, also if samples are skipped: a batch in which every sample was
    skipped arrives with zero rows.

    It is a plain sized iterable, not a `DataLoader`: Lightning has no sampler to replace and no length to distrust.

    Args:
        stream: What to read.
        transform: From a decoded image to the network's input. None: the source gives tensors already.
        batch_size: Samples per batch, at least 1.
        num_workers: Worker processes for reading and decoding. 0 (default) = in this process.
        on_error: "raise" (default): an unusable sample is a `DataError` that names stream, shard and key.
            "skip": it is listed with its reason in the batch's "skipped". Damage to a shard itself is always fatal,
            because it is unknown which samples are lost.
        decode: From the bytes of an image file to a PIL image; `decode_image` by default. A faster, less exact reading
            is `functools.partial(decode_image, reduce_to=...)`.
        rank: Number of this process among `world_size`.
        world_size: Number of processes that share the stream.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None (default) = the platform's.
        prefetch_factor: Batches that each worker prepares ahead; None (default) = PyTorch's 2.
        start: Batches of this process's share that are left out, because they were read before. Default 0.
        any_size: True: every image keeps its size, and training images need no label, as for object detectors.
        asked: Called whenever the next batch is asked for; None (default) = nobody.
        decode_on: A device on which JPEGs are decoded and transformed in batches, in this process; workers send the
            files. What it does not decode, they do. None (default) = they do everything.

    Raises:
        InvalidArgumentError: A number is out of its range, or decoder or transform cannot be followed on a device.
        RequirementError: `decode_on` decodes no JPEGs.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> from oodlit.datamodules.stream import Sample
        >>> from oodlit.roles import Role
        >>> samples = [Sample(str(i), torch.zeros(3, 2, 2)) for i in range(5)]
        >>> loader = StreamLoader(Stream("mine", Role.OOD, MemorySource(samples)), batch_size=2)
        >>> len(loader), [batch["key"] for batch in loader]
        (3, [['mine/0', 'mine/1'], ['mine/2', 'mine/3'], ['mine/4']])
    """

    batches_class = StreamBatches

    def __init__(
        self,
        stream: Stream,
        transform: Transform | None = None,
        *,
        batch_size: int = 64,
        num_workers: int = 0,
        on_error: OnError = "raise",
        decode: Decode = decode_image,
        rank: int = 0,
        world_size: int = 1,
        multiprocessing_context: str | None = None,
        prefetch_factor: int | None = None,
        start: int = 0,
        any_size: bool = False,
        asked: Callable[[], None] | None = None,
        decode_on: torch.device | str | None = None,
    ) -> None:
        if batch_size < 1 or num_workers < 0 or not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"StreamLoader(batch_size={batch_size}, num_workers={num_workers}, rank={rank}, "
                f"world_size={world_size}):"
                " batch_size >= 1, num_workers >= 0 and 0 <= rank < world_size are needed"
            )
        if on_error not in ("raise", "skip"):
            raise InvalidArgumentError(f"on_error={on_error!r}; 'raise' or 'skip' is needed")
        self.stream, self.batch_size, self.rank, self.world_size = stream, batch_size, rank, world_size
        share = len(reader_range(len(stream), rank, world_size))
        self.num_workers = min(num_workers, share)  # an idle worker costs seconds to start
        self._asked = asked or _nothing
        on_device = decode_on is not None and transform is not None  # without a transform, there are no files
        how = (batch_size, on_error, decode, rank, world_size, start, any_size, on_device)
        self._batches = self.batches_class(stream, transform, *how)
        self._decoder: DeviceDecoder | None = None
        if decode_on is not None and transform is not None:
            check_settings(decode, any_size=any_size)
            self._decoder = DeviceDecoder(self._batches, transform, torch.device(decode_on))
        # a generator of its own leaves the global random state alone
        self._options: dict[str, Any] = {"num_workers": self.num_workers, "generator": torch.Generator()}
        if self.num_workers:
            self._options |= {"multiprocessing_context": multiprocessing_context, "prefetch_factor": prefetch_factor}

    @property
    def num_samples(self) -> int:
        """Samples that this process gets, skipped ones included."""
        return sum(map(len, self._ranges()))

    def _ranges(self) -> list[range]:
        return self._batches.ranges(max(1, self.num_workers))

    def __len__(self) -> int:
        """Exact number of batches in this process."""
        return sum(-(-len(positions) // self.batch_size) for positions in self._ranges())

    def __iter__(self) -> Iterator[Batch]:
        """Read the share of this process once.

        Raises:
            DataError: By `on_error`; always for damaged shards and for keys that occur twice.
            PreprocessingError: The transform, the decoder or the source raised something else; names the sample, and
                what was raised is its cause, from a worker process too.
        """
        if not self.num_samples:
            return
        digests = array("Q")  # 8 bytes per sample
        yield from self._counted(digests)
        if len(digests) != self.num_samples:
            raise DataError(
                f"stream {self.stream.name!r}: {len(digests)} samples arrived, {self.num_samples} were announced"
            )
        self._check_unique(np.frombuffer(digests, dtype=np.uint64))

    def _counted(self, digests: "array[int]") -> Iterator[Batch]:
        """The batches as they arrive; `digests` takes those of the keys."""
        if self.num_workers:
            check_movable(self.stream, self._options["multiprocessing_context"], **self._batches.code)
        pin = torch.cuda.is_available()
        loader: DataLoader[Batch] = DataLoader(
            self._batches, batch_size=None, collate_fn=_as_it_is, pin_memory=pin, **self._options
        )
        largest_group = -1
        for batch in self._received(loader):
            if isinstance(batch, Failure):
                raise explained(batch.error, self.stream.name)
            if self._decoder is not None:
                self._decoder.complete(batch)
            keys = batch["key"] + [key for key, _ in batch["skipped"]]
            digests.extend(key_digest(key) for key in keys)
            batch["skipped"] = [
                (key, reason) for key, reason in batch["skipped"]
            ]  # pinning memory turns tuples into lists
            largest_group = max(largest_group, *batch["group"].tolist(), -1)
            for name in ("label", "group"):
                batch[name] = torch.from_numpy(batch[name])
                batch[name] = batch[name].pin_memory() if pin else batch[name]  # else its copy would be waited for
            yield batch
        if largest_group > 0 and not self.stream.class_names and self.stream.role not in NAMES_OF_LABELS:
            warnings.warn(
                f"stream {self.stream.name!r}: its images have groups (up to {largest_group}), but the groups have no"
                " names, so they are not told apart in the results; pass class_names=[...] to the stream",
                stacklevel=2,
            )

    def _received(self, loader: "DataLoader[Batch]") -> Iterator[Any]:
        """The batches of the loader; the death of a worker becomes an error that says so."""
        try:
            self._asked()
            for batch in loader:
                yield batch
                self._asked()
        except (RuntimeError, OSError) as error:
            raise explained(error, self.stream.name) from error

    def _check_unique(self, digests: np.ndarray) -> None:
        values, counts = np.unique(digests, return_counts=True)
        if (repeated := set(values[counts > 1].tolist())) == set():
            return
        name = self.stream.name
        for sample in self.stream.source.read(0, len(self.stream)):
            if key_digest(self.stream.full_key(sample.key)) in repeated:
                raise DataError(
                    f"stream {name!r}: key {sample.key!r} occurs more than once, first in"
                    f" {sample.origin or 'the source'}; a key identifies one sample"
                    " - rename one of them, or build the shards anew"
                )


def _nothing() -> None:
    """Nobody wants to know."""


def _as_it_is(batch: Any) -> Any:
    """The batch itself: `StreamBatches` has collated it."""
    return batch
