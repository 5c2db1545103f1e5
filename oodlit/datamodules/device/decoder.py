"""The end of the way of a JPEG that a device decodes: from files in a batch to the network's input."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from oodlit.datamodules.batches import Batch, Transform, check_alike
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.device.jpegs import Jpegs, check_device, decode_jpegs
from oodlit.datamodules.device.steps import DeviceTransform
from oodlit.datamodules.device.waiting import ExactReading, Waiting
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError


@runtime_checkable
class Reading(Protocol):
    """How samples are read where no device decodes them, as `StreamBatches` does."""

    stream: Stream

    def read(self, sample: Sample) -> tuple[str, Tensor | None]:
        """The network's input, or None and the reason."""

    def unusable(self, sample: Sample, reason: str) -> tuple[str, str]:
        """Key and reason of a sample that is skipped; an error where none is."""

    def blank(self) -> Tensor:
        """The network's input for a black image."""


class DeviceDecoder:
    """Decodes the JPEGs of batches on a device, and applies the transform there.

    A file that the device cannot decode or transform is read exactly; that decides whether it can be used, and why not.

    Args:
        reading: The exact reading, with its policy for bad samples.
        transform: Its transform.
        device: Where to decode.

    Raises:
        InvalidArgumentError: A step of the transform is not known on a device, or does something else there.
        RequirementError: JPEGs are not decoded on this device.
    """

    def __init__(self, reading: Reading, transform: Transform, device: torch.device) -> None:
        self._transform = DeviceTransform(transform)
        self._level = self._transform.level()
        self._transform.check(transform)
        check_device(device)
        self._reading, self._device = reading, device
        self._empty: Tensor | None = None

    def complete(self, batch: Batch) -> None:
        """Put the images of all rows that are files into their places, and list those that cannot be used.

        Raises:
            DataError: A file cannot be used, and such samples are not skipped.
        """
        waiting = batch.pop("waiting", None)
        if waiting is None:
            return
        with _own_queue(self._device):
            start = time.perf_counter()
            made, decoding = self._made(waiting.files)
            images, decoded, lost = self._in_order(batch, waiting, made)
            batch["image"] = self._joined(images)
            seconds = {"decode": decoding, "transform": time.perf_counter() - start - decoding}
        if self._device.type == "cuda":
            batch["image"].record_stream(torch.cuda.current_stream(self._device))
        if lost:
            _leave_out(batch, waiting, lost)
        for what, value in seconds.items():
            batch["seconds"][what] = batch["seconds"].get(what, 0.0) + value
        if decoded:
            batch["exact"] = ExactReading(waiting, decoded, self._exact, self._level)

    def _in_order(
        self, batch: Batch, waiting: Waiting, made: list[Tensor | None]
    ) -> tuple[list[Tensor], dict[int, int], dict[int, tuple[str, str]]]:
        """All images; by number of the file the places of those that the device decoded; by row what has no image."""
        stream, ready = self._reading.stream, iter(batch["image"])
        number_of = {row: number for number, row in enumerate(waiting.rows)}
        images: list[Tensor] = []
        decoded: dict[int, int] = {}
        lost: dict[int, tuple[str, str]] = {}
        for row, key in enumerate(batch["key"]):
            number = number_of.get(row)
            image = next(ready) if number is None else made[number]
            if number is not None and image is None:
                sample = waiting.sample(number)
                reason, image = self._reading.read(sample)
                if image is None:
                    lost[row] = self._reading.unusable(sample, reason)
            elif number is not None:
                decoded[number] = len(images)
            if image is None:
                continue
            images.append(image)
            check_alike(stream.name, images[0], image, key.removeprefix(stream.full_key("")))
        return images, decoded, lost

    def _made(self, files: Jpegs) -> tuple[list[Tensor | None], float]:
        """The network's input for every file, None where the device cannot decode it; and the seconds of decoding."""
        shaped: list[Tensor | None] = [None] * len(files)
        decoding = 0.0
        for part in files.parts():
            start = time.perf_counter()
            decoded = decode_jpegs([files.file(number) for number in part], self._device)
            decoding += time.perf_counter() - start
            for numbers, images in _by_size(zip(part, decoded, strict=True)):  # a few kernels for all of a size
                for number, image in zip(numbers, self._shaped(images), strict=True):
                    shaped[number] = image
        good = [image for image in shaped if image is not None]
        alike = len({image.shape for image in good}) == 1
        scaled = self._transform.scaled(torch.stack(good)) if alike else map(self._transform.scaled, good)
        made = iter(scaled)
        return [None if image is None else next(made) for image in shaped], decoding

    def _shaped(self, images: Tensor) -> Iterable[Tensor | None]:
        """Images of one size, resized and cropped; None each where that fails: the exact reading names the image."""
        try:
            return self._transform.shaped(images)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # steps raise what they like; the exact reading, which is next, says what is at fault
            return [None] * len(images)

    def _joined(self, images: list[Tensor]) -> Tensor:
        if images:
            joined = torch.stack([image.to(self._device, non_blocking=True) for image in images])
            self._empty = joined[:0].clone()  # without the memory of the others
        elif self._empty is None:
            blank = self._reading.blank()
            self._empty = blank.new_empty((0, *blank.shape), device=self._device)
        return joined if images else self._empty

    def _exact(self, sample: Sample) -> Tensor:
        reason, image = self._reading.read(sample)
        if image is None:
            raise DataError(
                f"{self._reading.stream.full_key(sample.key)!r}: {self._device} decodes it, but read exactly it cannot"
                f" be used: {reason}; leave decode_on_device out"
            )
        return image


def check_settings(decode: Decode, *, any_size: bool) -> None:
    """Refuse what JPEGs that are decoded on a device cannot follow.

    Raises:
        InvalidArgumentError: The decoder does more than `decode_image` within a limit of pixels, or images keep their
            sizes.
    """
    given = decode.keywords.keys() if isinstance(decode, partial) and decode.func is decode_image else set()
    if not (decode is decode_image or given == {"max_pixels"}):
        raise InvalidArgumentError(
            f"decode_on_device goes with decode=decode_image, or its max_pixels, and not with decode={decode!r};"
            " leave one of them out"
        )
    if any_size:
        raise InvalidArgumentError(
            "decode_on_device: images that keep their sizes (any_size, object detectors) are not compared with the"
            " exact reading; leave it out"
        )


def _by_size(images: Iterable[tuple[int, Tensor | None]]) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of the images of a size, and these images as one tensor."""
    found: dict[torch.Size, list[tuple[int, Tensor]]] = {}
    for number, image in images:
        if image is not None:
            found.setdefault(image.shape, []).append((number, image))
    for members in found.values():
        numbers, alike = zip(*members, strict=True)
        yield [*numbers], torch.stack(alike)


def _leave_out(batch: Batch, waiting: Waiting, lost: dict[int, tuple[str, str]]) -> None:
    """Rows that cannot be used become skipped samples, in the order of the samples."""
    rows = [*lost]
    batch["key"] = [key for row, key in enumerate(batch["key"]) if row not in lost]
    for name in ("label", "group"):
        batch[name] = np.delete(batch[name], rows)  # type: ignore[typeddict-item]  # no tensors yet
    places = [(before, False, pair) for before, pair in zip(waiting.before, batch["skipped"], strict=True)]
    places += [(row, True, pair) for row, pair in lost.items()]
    batch["skipped"] = [pair for *_, pair in sorted(places, key=lambda place: place[:2])]


@contextmanager
def _own_queue(device: torch.device) -> Iterator[None]:
    """Work in a queue of its own on a CUDA device; the usual one goes on when it is done.

    `decode_jpegs` waits for the current queue. Here that holds what was done with the files before alone, so that
    waiting for it does not wait for the network.
    """
    if device.type != "cuda":
        yield
        return
    own, usual = _queue(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(own):
        yield
    usual.wait_stream(own)


@lru_cache
def _queue(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
