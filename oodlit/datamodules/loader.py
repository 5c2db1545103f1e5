"""Load a stream in batches: every sample exactly once, for any number of workers and processes."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from oodlit.base.current_folder import shared_with_processes
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import NAMES_OF_LABELS
from oodlit.base.text.warn import warn_here
from oodlit.datamodules.batches import Batch, OnError, StreamBatches, Transform, reader_range
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.decoder import DeviceDecoder, check_settings
from oodlit.datamodules.failures import Failure, check_movable, explained
from oodlit.datamodules.keys import key_digest, repeated_digests
from oodlit.datamodules.loading_options import check_loading
from oodlit.datamodules.stream import Stream


class StreamLoader:
    """Batches of this process's part of a stream.

    The stream is split into contiguous ranges, one per (rank, worker). Batches are formed by position within a range,
    and partial batches are kept, so the length is exact even if samples are skipped: a batch of skipped samples only
    has zero rows.

    This is a plain sized iterable, not a `DataLoader`, so that Lightning does not replace its sampler.

    Args:
        stream: The stream to read.
        transform: From a decoded image to the network's input. None: the source yields tensors.
        batch_size: Samples per batch, at least 1.
        num_workers: Worker processes for reading and decoding. 0 (default) = no workers.
        on_error: "raise" (default): an unusable sample raises a `DataError` that names stream, shard and key.
            "skip": it is listed with its reason in the batch's "skipped". Damage to a shard itself always raises,
            because it is unknown which samples are lost.
        decode: Decoder from the bytes of an image file to a PIL image; `decode_image` by default. A faster, less exact
            decoder is `functools.partial(decode_image, reduce_to=...)`.
        rank: Rank of this process among `world_size`.
        world_size: Number of processes that share the stream.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None (default) = the platform's.
        prefetch_factor: Batches that each worker prepares ahead; None (default) = PyTorch's 2.
        start: Number of batches of this process that are skipped because they were read before. Default 0.
        any_size: If True, images keep their sizes, and training images need no labels, as for object detectors.
        on_request: Called whenever the next batch is requested; None (default) = not at all.
        decode_on: A device on which this process decodes and transforms JPEGs in batches. Workers send the files, and
            decode what the device cannot. None (default) = workers decode everything.

    Raises:
        InvalidArgumentError: A number is out of range, or the decoder or transform is not supported on a device.
        RequirementError: JPEGs cannot be decoded on `decode_on`.

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
        on_request: Callable[[], None] | None = None,
        decode_on: torch.device | str | None = None,
    ) -> None:
        check_loading(batch_size, num_workers)
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(f"StreamLoader: expected 0 <= rank < world_size, got {rank=} and {world_size=}")
        if on_error not in ("raise", "skip"):
            raise InvalidArgumentError(f"expected on_error to be 'raise' or 'skip', got {on_error!r}")
        self.stream, self.batch_size, self.rank, self.world_size = stream, batch_size, rank, world_size
        # an idle worker costs seconds to start
        self.num_workers = min(num_workers, len(reader_range(len(stream), rank, world_size)))
        self._on_request = on_request or (lambda: None)
        on_device = decode_on is not None and transform is not None  # without a transform, there are no files
        how = (batch_size, on_error, decode, rank, world_size, start, any_size, on_device)
        self._batches = self.batches_class(stream, transform, *how)
        self._decoder: DeviceDecoder | None = None
        if decode_on is not None and transform is not None:
            check_settings(decode, any_size=any_size)
            self._decoder = DeviceDecoder(self._batches, transform, torch.device(decode_on))
        # a separate generator leaves the global random state unchanged
        self._options: dict[str, Any] = {"num_workers": self.num_workers, "generator": torch.Generator()}
        if self.num_workers:
            self._options |= {"multiprocessing_context": multiprocessing_context, "prefetch_factor": prefetch_factor}

    @property
    def num_samples(self) -> int:
        """Number of samples of this process, including skipped ones."""
        return sum(map(len, self._ranges()))

    def _ranges(self) -> list[range]:
        return self._batches.ranges(max(1, self.num_workers))

    def __len__(self) -> int:
        """Exact number of batches of this process."""
        return sum(-(-len(positions) // self.batch_size) for positions in self._ranges())

    def __iter__(self) -> Iterator[Batch]:
        """Read the part of this process once.

        Raises:
            DataError: Depending on `on_error`; always for damaged shards and repeated keys.
            PreprocessingError: The transform, the decoder or the source failed. The message names the sample; the
                original error is its cause, even from a worker process.
        """
        if not self.num_samples:
            return
        digests = array("Q")  # 8 bytes per sample
        yield from self._counted(digests)
        if len(digests) != self.num_samples:
            raise DataError(
                f"data set {self.stream.name!r}: according to len() of its source, this process should read"
                f" {self.num_samples} samples, but the source returned {len(digests)}; correct len() of the source"
            )
        self._check_unique(np.frombuffer(digests, dtype=np.uint64))

    def _counted(self, digests: "array[int]") -> Iterator[Batch]:
        """Yield the batches, and append the hashes of their keys to `digests`."""
        if self.num_workers:
            code = {"transform": self._batches.transform, "decode": self._batches.decode}
            check_movable(self.stream, self._options["multiprocessing_context"], **code)
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
            batch["skipped"] = [(key, reason) for key, reason in batch["skipped"]]  # pinning makes lists of tuples
            largest_group = max(largest_group, *batch["group"].tolist(), -1)
            for name in ("label", "group"):
                batch[name] = torch.from_numpy(batch[name])
                batch[name] = batch[name].pin_memory() if pin else batch[name]  # otherwise copying it would wait
            yield batch
        if largest_group > 0 and not self.stream.class_names and self.stream.role not in NAMES_OF_LABELS:
            warn_here(
                f"data set {self.stream.name!r}: images have group numbers up to {largest_group}, but the data"
                " set has no class names, so there are no results per group; create the stream with class_names=[...]"
            )

    def _received(self, loader: "DataLoader[Batch]") -> Iterator[Any]:
        """Yield the batches of the loader, and explain errors of its worker processes."""
        try:
            self._on_request()
            with shared_with_processes():
                batches = iter(loader)
            for batch in batches:
                yield batch
                self._on_request()
        except (RuntimeError, OSError) as error:
            raise explained(error, self.stream.name) from error

    def _check_unique(self, digests: np.ndarray) -> None:
        repeated = repeated_digests(digests)
        for sample in self.stream.source.read(0, len(self.stream)) if repeated else ():
            if key_digest(self.stream.full_key(sample.key)) in repeated:
                raise DataError(
                    f"data set {self.stream.name!r}: key {sample.key!r} occurs more than once, first in"
                    f" {sample.origin or 'the source'}; rename one of the samples, or rebuild the shards"
                )


def _as_it_is(batch: Any) -> Any:
    """Return the batch, which `StreamBatches` has already collated."""
    return batch
