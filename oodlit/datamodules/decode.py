"""Decode image files to RGB, with one documented conversion for every color mode."""

import io
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial

import numpy as np
from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError, features

from oodlit.base.errors import DataError, InvalidArgumentError

_HAS_AVIF = "avif" in features.modules and features.check("avif")  # since Pillow 11.3
FORMATS: tuple[str, ...] = (
    *("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000"),
    *(("AVIF",) if _HAS_AVIF else ()),
)
"""Supported formats, by Pillow's names. Formats that start a program (EPS) or run code are excluded on purpose."""

MAX_PIXELS = 89_478_485
"""Default limit of width * height: a quarter of a gigabyte as RGB."""

MAX_SCANS = 100
"""Largest number of scans in a JPEG: decoding each takes as long as a whole image. Progressive files have about ten."""

Decode = Callable[[bytes], Image.Image]
"""A decoder from the bytes of an image file to an image, such as `decode_image`."""

_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


def decode_image(data: bytes, *, max_pixels: int = MAX_PIXELS, reduce_to: int | None = None) -> Image.Image:
    """Decode an image file to RGB. The format is detected from the content, never from the file name.

    | in the file            | result                                                               |
    |------------------------|----------------------------------------------------------------------|
    | grey, black-and-white  | the value in all three channels                                      |
    | palette                | the palette's colors                                                 |
    | alpha                  | dropped, the stored color stays (as in the papers' `convert("RGB")`)  |
    | CMYK                   | R = 255 - min(255, C + K) ...: (0, 0, 0, 0) is white                 |
    | 16 bits per channel    | the high byte                                                        |
    | animation, many pages  | the first frame                                                      |
    | EXIF orientation       | ignored: pixels as stored (as in the papers); applied in TIFF files  |
    | color profile          | ignored                                                              |

    Args:
        data: The whole file.
        max_pixels: Largest width * height; checked before any pixel is decoded. It replaces Pillow's own limit
            (`Image.MAX_IMAGE_PIXELS`).
        reduce_to: None (default) decodes at full scale. A number of pixels allows JPEG's reduced-scale decoding (1/2,
            1/4, 1/8) as long as both sides stay at least this long: faster for images much larger than the network's
            input, with slightly different pixels. Other formats are not affected.

    Returns:
        An image of mode RGB, fully decoded.

    Raises:
        DataError: The file is empty, truncated, larger than `max_pixels`, of a format outside `FORMATS`, or of a pixel
            type without a defined range (32-bit integers, floating point). The message has the reason; callers add the
            shard and the key.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("CMYK", (8, 4)).save(file, "JPEG")
        >>> image = decode_image(file.getvalue())
        >>> image.mode, image.size, image.getpixel((0, 0))
        ('RGB', (8, 4), (255, 255, 255))
    """
    if reduce_to is not None and reduce_to < 1:
        raise InvalidArgumentError(f"decode_image: expected reduce_to to be None or at least 1, got {reduce_to}")
    with _pillow_as_needed:
        image = open_image(data, max_pixels)
        if reduce_to is not None and image.mode in ("RGB", "L"):  # would change the color conversion of other modes
            image.draft(image.mode, (reduce_to, reduce_to))
        try:
            image.load()
            return to_rgb(image)
        except DataError:
            raise
        except Exception as error:  # Pillow's readers raise almost anything on broken files
            raise DataError(f"undecodable {image.format} image: {_reason(error)}") from error


def image_size(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int, str]:
    """Read width, height and Pillow's format name from the header alone.

    Args:
        data: The whole file.
        max_pixels: See `decode_image`.

    Raises:
        DataError: As `decode_image`, if the header already shows it.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (8, 4)).save(file, "PNG")
        >>> image_size(file.getvalue())
        (8, 4, 'PNG')
    """
    image = open_image(data, max_pixels)
    return image.width, image.height, str(image.format)


def max_pixels_of(decode: Decode) -> int:
    """The pixel limit of a decoder, `MAX_PIXELS` if unknown.

    Example:
        >>> max_pixels_of(partial(decode_image, max_pixels=10**9)), max_pixels_of(decode_image) == MAX_PIXELS
        (1000000000, True)
    """
    return int(decode.keywords.get("max_pixels", MAX_PIXELS) if isinstance(decode, partial) else MAX_PIXELS)


class _PillowAsNeeded(ContextDecorator):
    """Sets Pillow's global switches while any thread decodes, and restores them afterwards.

    Truncated files are refused. Pixels are limited by `max_pixels` alone. Texts and color profiles of a PNG may be
    long: an image is not refused for its metadata.
    """

    _text_chunk, _text_memory = 2**26, 2**28

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: tuple[bool, int | None, int, int] = (False, None, 0, 0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                chunk, memory = PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
                self._before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, chunk, memory
                self._set(False, None, max(chunk, self._text_chunk), max(memory, self._text_memory))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._set(*self._before)

    @staticmethod
    def _set(truncated: bool, pixels: int | None, chunk: int, memory: int) -> None:
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = truncated, pixels
        PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = chunk, memory


_pillow_as_needed = _PillowAsNeeded()
_TILE_SIZE = (322, 323)  # tags of TIFF


@_pillow_as_needed
def open_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image and read its header only.

    Raises:
        DataError: As `decode_image`, if the header already shows it.
    """
    if not data:
        raise DataError("undecodable image: the file is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise DataError(
            f"undecodable image: expected one of {', '.join(FORMATS)}, got {len(data)} bytes starting with {data[:8]!r}"
        ) from error
    except Exception as error:
        raise DataError(f"undecodable image: {_reason(error)}") from error
    if image.format in ("JPEG", "MPO") and (scans := data.count(b"\xff\xda")) > MAX_SCANS:
        raise DataError(f"image has {scans} scans, more than {MAX_SCANS}; save it again as a baseline JPEG")
    tags = getattr(image, "tag_v2", {})  # a tile of a TIFF can be larger than the image
    tile = [side for side in map(tags.get, _TILE_SIZE) if isinstance(side, int)]
    for width, height in [image.size, *([tile] if len(tile) == len(_TILE_SIZE) else [])]:
        if width * height > max_pixels:
            what = "image" if (width, height) == image.size else "tile"
            raise DataError(
                f"{what} has {width} x {height} pixels, more than max_pixels={max_pixels}. If you trust the file, raise"
                " the limit of the run with decode=functools.partial(decode_image, max_pixels=...), and the limit of"
                " `oodlit shards build` and `oodlit shards verify` with --max_pixels"
            )
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert a decoded image to RGB, as `decode_image` does.

    Raises:
        DataError: Its pixel type has no defined range.

    Example:
        >>> to_rgb(Image.new("L", (8, 4), 7)).getpixel((0, 0))
        (7, 7, 7)
    """
    if image.mode == "RGB":
        return image
    if image.mode in _16_BIT or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F", "LAB", "HSV"):
        raise DataError(f"undecodable {image.format} image: cannot convert pixel type {image.mode!r}; save it as RGB")
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
