"""Decode and transform the JPEG files of a batch on a device."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.datamodules.batches import Batch, StreamBatches, Transform, check_alike
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.jpegs import ExactReading, Jpegs, Waiting, check_device, decode_jpegs
from oodlit.datamodules.device.steps import DeviceTransform
from oodlit.datamodules.stream import Sample


class DeviceDecoder:
    """Decodes the JPEGs of batches on a device, and applies the transform there.

    Files that the device cannot decode or transform are read by the workers' decoder and transform, which decide
    whether an image can be used, and why not.

    Args:
        batches: Reads samples with the workers' decoder and transform, and knows the policy for bad samples.
        transform: The transform.
        device: Where to decode.

    Raises:
        InvalidArgumentError: A step of the transform is not supported on a device, or does something else there.
        RequirementError: JPEGs cannot be decoded on this device.
    """

    def __init__(self, batches: StreamBatches, transform: Transform, device: torch.device) -> None:
        self._transform = DeviceTransform(transform)
        self._transform.check(transform)
        self._level = self._transform.level()
        check_device(device)
        self._batches, self._device = batches, device
        self._empty: Tensor | None = None

    def complete(self, batch: Batch) -> None:
        """Decode the files of a batch to their rows, and list unusable files as skipped.

        Raises:
            DataError: A file cannot be used, and such samples are not skipped.
        """
        waiting = batch.pop("waiting", None)
        if waiting is None:
            return
        with _own_cuda_stream(self._device):
            start = time.perf_counter()
            made, decoding = self._made(waiting.files)
            images, decoded, lost = self._in_order(batch, waiting, made)
            batch["image"] = self._joined(images)
            seconds = {"decode": decoding, "transform": time.perf_counter() - start - decoding}
        if self._device.type == "cuda":
            batch["image"].record_stream(torch.cuda.current_stream(self._device))
        if lost:
            batch["key"] = [key for row, key in enumerate(batch["key"]) if row not in lost]
            for name in ("label", "group"):
                batch[name] = np.delete(batch[name], [*lost])  # type: ignore[typeddict-item]  # no tensors yet
            batch["skipped"] += lost.values()
        for what, value in seconds.items():
            batch["seconds"][what] = batch["seconds"].get(what, 0.0) + value
        if decoded:
            batch["exact"] = ExactReading(waiting, decoded, self._exact, self._level)

    def _in_order(
        self, batch: Batch, waiting: Waiting, made: list[Tensor | None]
    ) -> tuple[list[Tensor], dict[int, int], dict[int, tuple[str, str]]]:
        """Return all images, the row of each device-decoded file by its number, and the unusable samples by row."""
        stream, ready = self._batches.stream, iter(batch["image"])
        number_of = {row: number for number, row in enumerate(waiting.rows)}
        images: list[Tensor] = []
        decoded: dict[int, int] = {}
        lost: dict[int, tuple[str, str]] = {}
        for row, key in enumerate(batch["key"]):
            number = number_of.get(row)
            image = next(ready) if number is None else made[number]
            if number is not None and image is None:
                sample = waiting.sample(number)
                reason, image = self._batches.read(sample)
                if image is None:
                    lost[row] = self._batches.unusable(sample, reason)
                    continue
            elif number is not None:
                decoded[number] = len(images)
            assert image is not None
            images.append(image)
            check_alike(stream.name, images[0], image, key.removeprefix(stream.full_key("")))
        return images, decoded, lost

    def _made(self, files: Jpegs) -> tuple[list[Tensor | None], float]:
        """Return the network's input for every file (None if the device cannot decode it), and the decoding seconds."""
        made: list[Tensor | None] = [None] * len(files)
        decoding = 0.0
        for part in files.parts():
            start = time.perf_counter()
            decoded = decode_jpegs([files.file(number) for number in part], self._device)
            decoding += time.perf_counter() - start
            by_size: dict[torch.Size, list[tuple[int, Tensor]]] = {}
            for number, image in zip(part, decoded, strict=True):
                if image is not None:
                    by_size.setdefault(image.shape, []).append((number, image))
            for members in by_size.values():  # a few kernels for all images of a size
                numbers, images = zip(*members, strict=True)
                for number, image in zip(numbers, self._transformed(torch.stack(images)), strict=True):
                    made[number] = image
        return made, decoding

    def _transformed(self, images: Tensor) -> Iterable[Tensor | None]:
        """Return the network's input for images of one size; None for each image if the transform fails."""
        try:
            return self._transform(images)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # steps raise what they like; the workers' transform, which is next, names the image
            return [None] * len(images)

    def _joined(self, images: list[Tensor]) -> Tensor:
        if images:
            joined = torch.stack([image.to(self._device, non_blocking=True) for image in images])
            self._empty = joined[:0].clone()  # without the memory of the others
        elif self._empty is None:
            blank = self._batches.blank()
            self._empty = blank.new_empty((0, *blank.shape), device=self._device)
        return joined if images else self._empty

    def _exact(self, sample: Sample) -> Tensor:
        reason, image = self._batches.read(sample)
        if image is None:
            raise DataError(
                f"{self._batches.stream.full_key(sample.key)!r}: {self._device} decodes this image, but workers"
                f" cannot decode it ({reason}), so results would depend on the device; run without decode_on_device"
            )
        return image


def check_settings(decode: Decode, *, any_size: bool) -> None:
    """Check that the options are supported with `decode_on_device`.

    Raises:
        InvalidArgumentError: The decoder is not `decode_image`, with or without `max_pixels`, or images keep their
            sizes.
    """
    given = decode.keywords.keys() if isinstance(decode, partial) and decode.func is decode_image else set()
    if not (decode is decode_image or given == {"max_pixels"}):
        raise InvalidArgumentError(
            f"decode_on_device only supports decode=decode_image, with or without max_pixels; got decode={decode!r}"
        )
    if any_size:
        raise InvalidArgumentError("decode_on_device supports neither any_size=True nor object detectors; omit it")


@contextmanager
def _own_cuda_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a separate CUDA stream, which the current stream then waits for.

    `decode_jpegs` waits for the current stream. A separate one only contains work on earlier files, so that waiting for
    it does not wait for the network.
    """
    if device.type != "cuda":
        yield
        return
    own, usual = _cuda_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(own):
        yield
    usual.wait_stream(own)


@lru_cache
def _cuda_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
