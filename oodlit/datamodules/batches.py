"""Collate samples into batches, in a worker process or in the main process."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import NotRequired

from oodlit.base.errors import DataError, InvalidArgumentError, OodlitError, PreprocessingError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.datamodules.decode import Decode, max_pixels_of
from oodlit.datamodules.device.jpegs import ExactReading, Jpeg, Jpegs, Waiting, jpeg_for_device, worker_empty
from oodlit.datamodules.failures import Failure, describe_error
from oodlit.datamodules.stream import Sample, Stream

OnError = Literal["raise", "skip"]
Transform = Callable[..., Any]
"""From a decoded image to a tensor. The type is loose: torchvision's transforms have no annotations, and the
configuration parser would read a stricter type as "a class whose instances are tensors"."""


class Batch(TypedDict):
    """One batch. Row i of image, label, group and key is the same sample; skipped samples have no row."""

    image: Tensor
    """Transformed images, shape (batch, channels, height, width); with `any_size`, a list of images."""
    label: Tensor
    """Shape (batch,), int64; -1 = none."""
    group: Tensor
    """Shape (batch,), int64; -1 = none."""
    key: list[str]
    """`dataset/key` of every row."""
    skipped: list[tuple[str, str]]
    """(`dataset/key`, reason) of the samples of this batch that cannot be used."""
    seconds: dict[str, float]
    """Seconds spent reading, decoding and transforming the samples; empty if not measured."""
    waiting: NotRequired[Waiting]
    """Rows with files that the device still has to decode; removed before the batch leaves its loader."""
    exact: NotRequired[ExactReading]
    """Reads device-decoded images again, with the workers' decoder and transform."""


def reader_range(total: int, reader: int, readers: int) -> range:
    """Return the positions of one reader. All readers have disjoint ranges that cover everything, of nearly equal size.

    Example:
        >>> [reader_range(7, r, 3) for r in range(3)]
        [range(0, 2), range(2, 4), range(4, 7)]
    """
    return range(total * reader // readers, total * (reader + 1) // readers)


@dataclass(eq=False)
class StreamBatches(IterableDataset[Any]):
    """Collated batches of one reader's range. Pickled to the worker processes."""

    stream: Stream
    transform: Transform | None
    batch_size: int
    on_error: OnError
    decode: Decode
    rank: int
    world_size: int
    start: int = 0
    any_size: bool = False
    on_device: bool = False
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _like: Tensor | None = field(default=None, init=False)

    def ranges(self, workers: int) -> list[range]:
        """Ranges of this rank's workers, without the batches that were read before."""
        whole = reader_range(len(self.stream), self.rank, self.world_size)
        parts = [reader_range(len(whole), worker, workers) for worker in range(workers)]
        ranges = [whole[part.start : part.stop] for part in parts]
        return [part[n * self.batch_size :] for part, n in zip(ranges, self._read_before(ranges), strict=True)]

    def _read_before(self, ranges: Sequence[range]) -> list[int]:
        """Return how many of the first `start` batches each worker delivers: workers take turns until they run out."""
        left, done = [-(-len(part) // self.batch_size) for part in ranges], [0] * len(ranges)
        for _ in range(min(self.start, sum(left))):
            fewest = min(n for n, rest in zip(done, left, strict=True) if n < rest)
            turn = next(w for w, n in enumerate(done) if n == fewest and n < left[w])
            done[turn] += 1
        return done

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker, or the error that stopped it."""
        info = get_worker_info()
        positions = self.ranges(info.num_workers)[info.id] if info else self.ranges(1)[0]
        try:
            yield from self._read(positions)
        except Exception as error:  # sent as an item: PyTorch replaces the errors of workers with its own
            yield Failure(error)

    def _read(self, positions: range) -> Iterator[Batch]:
        return self._batched(self._samples(positions), len(positions))

    def _batched(self, samples: Iterator[Sample], most: int) -> Iterator[Batch]:
        """Yield batches; `samples` yields at most `most` samples."""
        rows = self._rows(most)
        for count, sample in enumerate(self._measured(samples), 1):
            self._add(rows, sample)
            if count % self.batch_size == 0 or count == most:
                yield self._batch(rows)
                rows = self._rows(most - count)
        if rows.samples or rows.skipped:
            yield self._batch(rows)

    def _add(self, rows: "_Rows", sample: Sample) -> None:
        """Add a sample to its batch, or to the skipped samples."""
        reason, image = self._image(sample)
        if image is None:
            rows.skipped.append(self.unusable(sample, reason))
            return
        rows.add(sample, image)
        if isinstance(image, Tensor):
            self._like = image

    def unusable(self, sample: Sample, reason: str) -> tuple[str, str]:
        """Return the key of an unusable sample, and the reason.

        Raises:
            DataError: Unusable samples are not skipped.
        """
        if self.on_error == "skip":
            return self.stream.full_key(sample.key), reason
        place = f"{sample.origin}, " if sample.origin else ""
        raise DataError(
            f"data set {self.stream.name!r}: {place}key {sample.key!r}: {reason}; repair the data, or skip and list"
            " such samples with OODDataModule(..., on_error='skip')"
        )

    def _measured(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the samples and measure the time to read them."""
        while True:
            start = time.perf_counter()
            sample = next(samples, None)
            self._add_seconds("read", start)
            if sample is None:
                return
            yield sample

    def _add_seconds(self, what: str, start: float) -> None:
        self._seconds[what] = self._seconds.get(what, 0.0) + time.perf_counter() - start

    def _samples(self, positions: range) -> Iterator[Sample]:
        """Yield the samples of the source; errors name the stream and the position."""
        place, count = f"position {positions.start}", 0
        try:
            for sample in self.stream.source.read(positions.start, positions.stop):
                yield sample
                count += 1
                place = f"the sample after {self.stream.full_key(sample.key)!r}"
        except PreprocessingError as error:  # its message names the sample
            raise PreprocessingError(f"data set {self.stream.name!r}: {error}") from error.__cause__
        except OodlitError:
            raise
        except Exception as error:
            raise PreprocessingError(
                f"data set {self.stream.name!r}: {type(self.stream.source).__name__} failed at {place}"
                f" ({describe_error(error)})"
            ) from error
        if count != len(positions):
            raise DataError(
                f"data set {self.stream.name!r}: expected {len(positions)} samples at positions {positions.start} to"
                f" {positions.stop - 1}, but {type(self.stream.source).__name__} returned {count}; correct read() or"
                " len() of the source"
            )

    def _rows(self, remaining: int) -> "_Rows":
        return _Rows(self.stream.name, min(self.batch_size, remaining), any_size=self.any_size)

    def _image(self, sample: Sample) -> tuple[str, Tensor | Jpeg | None]:
        """Return the network's input, a file for the device to decode, or None with the reason."""
        if sample.error is not None:
            return sample.error, None
        if self.stream.role is Role.TRAIN and sample.label < 0 and not self.any_size:
            return "training images require a label, but this image has none (in shards: field .cls)", None
        names, by_label = len(self.stream.class_names), self.stream.role in NAMES_OF_LABELS
        index = sample.label if by_label else sample.group
        if names and not (-1 if by_label else 0) <= index < names:
            return f"{'label' if by_label else 'group'} {index} is out of range for {names} class names", None
        if self.on_device and isinstance(sample.image, bytes):
            start = time.perf_counter()
            jpeg = jpeg_for_device(sample.image, max_pixels_of(self.decode))
            self._add_seconds("decode", start)
            if jpeg is not None:
                return "", jpeg
        return self.read(sample)

    def read(self, sample: Sample) -> tuple[str, Tensor | None]:
        """Decode and transform an image on the CPU; returns the network's input, or None and the reason."""
        if isinstance(sample.image, Tensor):
            return "", sample.image
        start = time.perf_counter()
        try:
            image = self.decode(sample.image) if isinstance(sample.image, bytes) else sample.image
        except DataError as error:
            return str(error), None
        except Exception as error:
            raise PreprocessingError(f"{self._place(sample)}: the decoder failed ({describe_error(error)})") from error
        self._add_seconds("decode", start)
        start = time.perf_counter()
        transformed = self._transformed(image, self._place(sample))
        self._add_seconds("transform", start)
        return "", transformed

    def _place(self, sample: Sample) -> str:
        return repr(self.stream.full_key(sample.key)) + (f" ({sample.origin})" if sample.origin else "")

    def _transformed(self, image: Image.Image, what: str) -> Tensor:
        if self.transform is None:
            raise InvalidArgumentError(
                f"data set {self.stream.name!r}: images require a transform; pass transform=... to OODModule or"
                " OODDataModule, or set `transform: {class_path: ...}` below init_args of OODModule"
            )
        try:
            transformed = self.transform(image if image.mode == "RGB" else image.convert("RGB"))
        except Exception as error:
            raise PreprocessingError(f"{what}: the transform failed ({describe_error(error)})") from error
        if not isinstance(transformed, Tensor):
            raise InvalidArgumentError(
                f"{what}: expected the transform to return a tensor, got {type(transformed).__name__}"
            )
        return transformed

    def blank(self) -> Tensor:
        """Return the network's input for a black image."""
        what = f"data set {self.stream.name!r}, black image in place of a skipped image"
        return self._transformed(Image.new("RGB", (64, 64)), what)

    def _batch(self, rows: "_Rows") -> Batch:
        images: Any = rows.whole if self.any_size else rows.images
        if images is None:
            like = self._like
            if like is None:
                like = torch.zeros(3, 1, 1) if self.transform is None or rows.waiting else self.blank()
            images = like.new_empty((0, *like.shape))
        seconds, self._seconds = self._seconds, {}
        batch = Batch(
            image=images,
            # NumPy arrays: each tensor would keep a shared-memory file open as long as the batch's outputs are in use.
            label=np.array([sample.label for sample in rows.samples], dtype=np.int64),  # type: ignore[typeddict-item]
            group=np.array([sample.group for sample in rows.samples], dtype=np.int64),  # type: ignore[typeddict-item]
            key=[self.stream.full_key(sample.key) for sample in rows.samples],
            skipped=rows.skipped,
            seconds=seconds,
        )
        if rows.waiting:
            files, samples = zip(*rows.waiting.values(), strict=True)
            kept = tuple(replace(sample, image=b"") for sample in samples)
            batch["waiting"] = Waiting(Jpegs.of(files), kept, tuple(rows.waiting))
        return batch


class _Rows:
    """One batch while it is collected. Images are copied into place immediately, while they are in the CPU cache.

    In a worker the batch is in shared memory, so that nothing is copied on the way to the main process.
    """

    def __init__(self, stream: str, capacity: int, *, any_size: bool = False) -> None:
        self._stream, self._capacity, self._any_size = stream, capacity, any_size
        self._space: Tensor | None = None
        self.whole: list[Tensor] = []
        """Images that keep their sizes."""
        self.waiting: dict[int, tuple[Jpeg, Sample]] = {}
        """Files that a device decodes later, by row."""
        self.samples: list[Sample] = []
        self.skipped: list[tuple[str, str]] = []

    def add(self, sample: Sample, image: Tensor | Jpeg) -> None:
        """Append a row.

        Raises:
            InvalidArgumentError: The image differs from the first one in shape or dtype.
        """
        if isinstance(image, Jpeg):
            self.waiting[len(self.samples)] = image, sample
        elif self._any_size:
            self.whole.append(image)
        else:
            if self._space is None:
                shape, is_on_cpu = (self._capacity, *image.shape), image.device.type == "cpu"
                self._space = worker_empty(shape, image.dtype) if is_on_cpu else image.new_empty(shape)
            check_alike(self._stream, self._space[0], image, sample.key)
            self._space[len(self.samples) - len(self.waiting)] = image
        self.samples.append(sample)

    @property
    def images(self) -> Tensor | None:
        """Decoded images, shape (rows, ...); None if there are none yet."""
        return None if self._space is None else self._space[: len(self.samples) - len(self.waiting)]


def check_alike(stream: str, first: Tensor, image: Tensor, key: str) -> None:
    """Check that an image has the shape and dtype of the first one of its batch.

    Raises:
        InvalidArgumentError: It has not.
    """
    if image.shape == first.shape and image.dtype == first.dtype:
        return
    raise InvalidArgumentError(
        f"data set {stream!r}: expected images of one shape and dtype, got {tuple(first.shape)} ({first.dtype}) and, at"
        f" key {key!r}, {tuple(image.shape)} ({image.dtype}). Use a transform that returns one size and dtype."
        " Tensors of a data set are used without the transform, so they must already be alike"
    )
