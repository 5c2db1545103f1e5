"""JPEG files that a device decodes: select them, send them in one tensor, decode them, and read them exactly."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.utils.data import get_worker_info

from oodlit.base.errors import DataError, RequirementError
from oodlit.datamodules.decode import open_image
from oodlit.datamodules.stream import Sample

_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
"""A marker that ends the data of a scan: neither a stuffed byte nor a restart."""
_START, _END = 0xD8, 0xD9
"""Markers of the start and the end of a JPEG, which have no length."""
_MOST_BYTES = 2**28
"""Bytes of pixels that are decoded at a time: 256 MiB."""


class Jpeg(NamedTuple):
    """A JPEG file that a device can decode.

    Args:
        data: The whole file.
        height: Rows of pixels.
        width: Columns of pixels.
    """

    data: bytes
    height: int
    width: int


def jpeg_for_device(data: bytes, max_pixels: int) -> Jpeg | None:
    """Return the file if a device decodes it like `decode_image`; None for any other file, including broken ones.

    These are 8-bit JPEGs, gray or with luma and chroma under the usual component names. Pillow decodes CMYK, RGB
    components and Adobe's other transforms. It also gets files without an end marker, because device decoders may fill
    in missing data without an error.

    Args:
        data: The bytes of an image file.
        max_pixels: See `decode_image`.

    Example:
        >>> made = {}
        >>> for mode in ("RGB", "CMYK"):
        ...     file = io.BytesIO()
        ...     Image.new(mode, (8, 4)).save(file, "JPEG")
        ...     made[mode] = file.getvalue()
        >>> jpeg_for_device(made["RGB"], 100)[1:], jpeg_for_device(made["CMYK"], 100)
        ((4, 8), None)
        >>> jpeg_for_device(made["RGB"][:-2], 100) is None
        True
    """
    if not data.startswith(b"\xff\xd8"):
        return None
    try:
        image = open_image(data, max_pixels)
    except DataError:
        return None
    if not isinstance(image, JpegImageFile) or image.format != "JPEG":
        return None
    is_grey = image.layers == 1
    is_usual = [component[0] for component in image.layer] == [1, 2, 3] and image.info.get("adobe_transform", 1) == 1
    read = 0 if image.fp is None else image.fp.tell()  # to the data of the first scan
    return Jpeg(data, image.height, image.width) if (is_grey or is_usual) and _has_end(data, read) else None


def _has_end(data: bytes, place: int) -> bool:
    """Whether the scans end with a marker. Markers in comments or in a following JPEG do not count."""
    while found := _MARKER.search(data, place):
        mark, place = found[1][0], found.end()
        if mark in (_START, _END):
            return mark == _END
        place += int.from_bytes(data[place : place + 2], "big")
    return False


def worker_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create an uninitialized CPU tensor, in shared memory if this is a worker process."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call] # as PyTorch's own collation
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


@dataclass(frozen=True, eq=False)
class Jpegs:
    """JPEG files in one tensor: in shared memory, separate tensors would each keep a file open.

    Args:
        data: The bytes of all files.
        ends: End of each file in `data`.
        sizes: Height and width of each.
    """

    data: Tensor
    ends: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, files: Sequence[Jpeg]) -> "Jpegs":
        """Join files in one tensor, in shared memory if this is a worker process."""
        ends = tuple(np.cumsum([len(file.data) for file in files], dtype=np.int64).tolist())
        data = worker_empty((ends[-1] if files else 0,), torch.uint8)
        joined = data.numpy()
        for file, end in zip(files, ends, strict=True):
            joined[end - len(file.data) : end] = np.frombuffer(file.data, dtype=np.uint8)
        return cls(data, ends, tuple((file.height, file.width) for file in files))

    def __len__(self) -> int:
        """Number of files."""
        return len(self.ends)

    def file(self, number: int) -> Tensor:
        """The bytes of one file."""
        return self.data[self.ends[number - 1] if number else 0 : self.ends[number]]

    def parts(self) -> Iterable[range]:
        """Split the file numbers into parts that fit in memory when decoded together."""
        start, size = 0, 0
        for number, (height, width) in enumerate(self.sizes):
            size += 3 * height * width
            if size > _MOST_BYTES and number > start:
                yield range(start, number)
                start, size = number, 3 * height * width
        yield range(start, len(self))


@dataclass(frozen=True, eq=False)
class Waiting:
    """Rows of a batch with files that the main process decodes.

    Args:
        files: One file per row.
        samples: Their samples, without the files.
        rows: Their rows in the batch; other rows are already images.
    """

    files: Jpegs
    samples: tuple[Sample, ...]
    rows: tuple[int, ...]

    def sample(self, number: int) -> Sample:
        """A sample with its file, as read from its source."""
        return replace(self.samples[number], image=self.files.file(number).numpy().tobytes())


class ExactReading:
    """Reads the images of a batch again with `decode_image` and the original transform.

    Not a dataclass: Lightning would move its tensors to the device with every batch.

    Args:
        waiting: The files.
        rows: Row in the finished batch, by number of the file.
        read: From a sample to its exact image.
        level: Change of the network's input when a pixel (0 to 255) grows by 1.
    """

    def __init__(self, waiting: Waiting, rows: dict[int, int], read: Callable[[Sample], Tensor], level: Tensor) -> None:
        self.waiting, self.rows, self.read, self.level = waiting, rows, read, level

    def images(self, images: Tensor) -> Tensor:
        """Replace images that a device decoded with the exact ones."""
        exact = images.clone()
        for number, row in self.rows.items():
            exact[row] = self.read(self.waiting.sample(number)).to(exact.device, exact.dtype)
        return exact

    def deviation(self, images: Tensor, exact: Tensor) -> tuple[float, float]:
        """Return the largest and mean difference between device-decoded and exact pixels, on a scale of 0 to 255."""
        rows = torch.tensor([*self.rows.values()])
        one, other = (values.cpu().double()[rows] for values in (images, exact))
        steps = (one - other).abs() / self.level.abs()
        return float(steps.max()), float(steps.mean())


def decode_jpegs(files: list[Tensor], device: torch.device) -> list[Tensor | None]:
    """Decode files to uint8 images (3, height, width) on the device; None for a file that it cannot decode.

    Args:
        files: Bytes of files, on the CPU.
        device: A CUDA device, which uses nvJPEG, or the CPU.
    """
    try:
        return [*_decoded(files, device)]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # caused by one file, but the images of all are lost
        if device.type == "cuda":  # the memory of the failed file may still be written to
            torch.cuda.synchronize(device)
        return [None] if len(files) == 1 else [image for file in files for image in decode_jpegs([file], device)]


def _decoded(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decode with torchvision, on a CUDA device after the current stream is empty.

    torchvision decodes in its own stream, into memory that PyTorch takes from the current stream without waiting: a
    pending kernel that still reads that memory would see other pixels.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415 - not needed in workers

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    with warnings.catch_warnings():
        # torchvision 0.29 announces that its decoders will move to torchcodec
        warnings.filterwarnings("ignore", "The image decoding and encoding capabilities", DeprecationWarning)
        return list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))


@lru_cache
def check_device(device: torch.device) -> None:
    """Check that JPEGs can be decoded on a device, by decoding a small one.

    Raises:
        RequirementError: They cannot.
    """
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    reason = f"expected one of {', '.join(DEVICES)}"
    if device.type in DEVICES:
        try:
            _decoded([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], device)
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
        else:
            return
    raise RequirementError(
        f"decode_on_device: torchvision cannot decode JPEGs on the device {str(device)!r} ({reason}); omit"
        " decode_on_device to decode in workers"
    )


DEVICES = ("cuda", "cpu")
"""Device types that can decode JPEGs."""
