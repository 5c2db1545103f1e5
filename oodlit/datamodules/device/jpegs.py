"""JPEG files on their way to a device: which of them it decodes, in one tensor for all, and how."""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.utils.data import get_worker_info

from oodlit.datamodules.decode import opened
from oodlit.errors import DataError, RequirementError

_MARK = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
"""What ends the data of a scan: neither a byte of it nor a restart."""
_START, _END = 0xD8, 0xD9
"""Marks without a length, of the start and the end of a JPEG."""
_MOST_BYTES = 2**28
"""Pixels that are decoded at a time: 256 MiB."""


class Jpeg(NamedTuple):
    """A file that a device decodes.

    Args:
        data: The whole file.
        height: Rows of pixels.
        width: Columns of pixels.
    """

    data: bytes
    height: int
    width: int


def jpeg_for_device(data: bytes, max_pixels: int) -> Jpeg | None:
    """The file, if a device reads it as `decode_image` does; None for all others, broken ones included.

    That are JPEGs of 8 bits, grey or of luma and chroma by the usual names of their components. CMYK, RGB components
    and Adobe's other transforms are left to Pillow. So is a file without its end mark: decoders of devices may fill
    what is missing in silence.

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
        image = opened(data, max_pixels)
    except DataError:
        return None
    if not isinstance(image, JpegImageFile) or image.format != "JPEG":
        return None
    is_grey = image.layers == 1
    is_usual = [component[0] for component in image.layer] == [1, 2, 3] and image.info.get("adobe_transform", 1) == 1
    read = 0 if image.fp is None else image.fp.tell()  # up to the data of the first scan
    is_whole = _has_end(data, read)
    return Jpeg(data, image.height, image.width) if (is_grey or is_usual) and is_whole else None


def _has_end(data: bytes, place: int) -> bool:
    """Whether an end mark comes behind the scans: one within a comment, or of a JPEG that follows, is not theirs."""
    while found := _MARK.search(data, place):
        mark, place = found[1][0], found.end()
        if mark in (_START, _END):
            return mark == _END
        place += int.from_bytes(data[place : place + 2], "big")
    return False


@dataclass(frozen=True, eq=False)
class Jpegs:
    """Files of JPEGs, one after the other in one tensor: in shared memory, a tensor each would hold an open file each.

    Args:
        data: The bytes of all files.
        ends: Where each file ends.
        sizes: Height and width of each.
    """

    data: Tensor
    ends: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, files: Sequence[Jpeg]) -> "Jpegs":
        """Join files; in a worker, in shared memory."""
        ends = tuple(np.cumsum([len(file.data) for file in files], dtype=np.int64).tolist())
        total = ends[-1] if files else 0
        if get_worker_info() is None:
            data = torch.empty(total, dtype=torch.uint8)
        else:
            storage = torch.UntypedStorage._new_shared(total)  # type: ignore[no-untyped-call] # as PyTorch collates
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
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
        """Numbers of the files, as many at a time as may be decoded at once."""
        start, size = 0, 0
        for number, (height, width) in enumerate(self.sizes):
            size += 3 * height * width
            if size > _MOST_BYTES and number > start:
                yield range(start, number)
                start, size = number, 3 * height * width
        yield range(start, len(self))


def decode_jpegs(files: list[Tensor], device: torch.device) -> list[Tensor | None]:
    """Images (3, height, width) on the device, uint8; None for a file that it cannot decode.

    Args:
        files: Bytes of files, on the CPU.
        device: A CUDA device, whose nvJPEG decodes them, or the CPU.
    """
    try:
        return [*_decoded(files, device)]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # of one file, and nothing is left of the others
        if device.type == "cuda":  # it may still be written to the memory of the file that failed
            torch.cuda.synchronize(device)
        return [None] if len(files) == 1 else [image for file in files for image in decode_jpegs([file], device)]


def _decoded(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """As torchvision decodes, on a CUDA device once the current queue is empty.

    There it decodes in a queue of its own, into memory that PyTorch takes from the current one without waiting for it:
    a kernel that is still to read from that memory would find other pixels.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415 - workers need none of it

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    with warnings.catch_warnings():
        # torchvision 0.29 announces that it will hand its decoders over to torchcodec
        warnings.filterwarnings("ignore", "The image decoding and encoding capabilities", DeprecationWarning)
        images: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
    return images


@lru_cache
def check_device(device: torch.device) -> None:
    """Decode a small JPEG there.

    Raises:
        RequirementError: That does not work; says what to do.
    """
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    reason = f"it is none of {', '.join(DEVICES)}"
    if device.type in DEVICES:
        try:
            _decoded([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], device)
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
        else:
            return
    raise RequirementError(
        f"decode_on_device: torchvision does not decode JPEGs on the device {str(device)!r} ({reason}); leave it out,"
        " and the workers decode them"
    )


DEVICES = ("cuda", "cpu")
"""Types of devices that JPEGs are decoded on."""
