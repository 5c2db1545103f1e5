"""From the bytes of an image file to RGB pixels: one documented reading for every colour mode."""

import io
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

from oodlit.errors import DataError, InvalidArgumentError

FORMATS: tuple[str, ...] = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
"""Formats that are read, by Pillow's names. Formats that start a program (EPS) or run code are left out on purpose."""

MAX_PIXELS = 89_478_485
"""Largest width * height that is decoded unless stated otherwise: a quarter of a gigabyte as RGB."""

Decode = Callable[[bytes], Image.Image]
"""From the bytes of an image file to an image, such as `decode_image`."""

_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


def decode_image(data: bytes, *, max_pixels: int = MAX_PIXELS, reduce_to: int | None = None) -> Image.Image:
    """Decode an image file to RGB. The content decides the format, never a file name.

    | in the file            | reading                                                              |
    |------------------------|----------------------------------------------------------------------|
    | grey, black-and-white  | the value in all three channels                                      |
    | palette                | the palette's colours                                                |
    | alpha                  | dropped, the stored colour stays (as in the papers' `convert("RGB")`) |
    | CMYK                   | R = 255 - min(255, C + K) ...: (0, 0, 0, 0) is white                 |
    | 16 bits a channel      | the high byte                                                        |
    | animation, many pages  | the first frame                                                      |
    | EXIF orientation       | ignored: pixels as stored (as in the papers)                         |
    | colour profile         | ignored                                                              |

    Args:
        data: The whole file.
        max_pixels: Largest width * height; checked before any pixel is decoded. It alone counts: Pillow's own limits
            (`Image.MAX_IMAGE_PIXELS`) are not asked.
        reduce_to: None (default) decodes exactly. A number of pixels allows JPEG's reduced-scale decoding (1/2, 1/4,
            1/8) as long as both sides stay at least this long: faster for originals much larger than the network's
            input, at pixels that differ slightly. Other formats are not affected.

    Returns:
        An image of mode RGB, fully decoded.

    Raises:
        DataError: The file is empty, truncated, larger than `max_pixels`, of a format outside `FORMATS`, or of a pixel
            type without a defined range (32-bit integers, floating point). The message gives the reason; who knows
            the shard and the key adds them.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("CMYK", (8, 4)).save(file, "JPEG")
        >>> image = decode_image(file.getvalue())
        >>> image.mode, image.size, image.getpixel((0, 0))
        ('RGB', (8, 4), (255, 255, 255))
    """
    if reduce_to is not None and reduce_to < 1:
        raise InvalidArgumentError(f"decode_image: reduce_to={reduce_to}; None or a number of pixels >= 1 is needed")
    with _pillow_as_needed:
        image = _open(data, max_pixels)
        if reduce_to is not None and image.mode in ("RGB", "L"):  # other modes would change their colour reading
            image.draft(image.mode, (reduce_to, reduce_to))
        try:
            image.load()
            return to_rgb(image)
        except DataError:
            raise
        except Exception as error:  # Pillow's readers raise nearly anything on broken files
            raise DataError(f"undecodable {image.format} image: {_reason(error)}") from error


def image_size(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int, str]:
    """Width, height and Pillow's format name, from the header alone.

    Args:
        data: The whole file.
        max_pixels: See `decode_image`.

    Raises:
        DataError: As `decode_image`, as far as the header shows it.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (8, 4)).save(file, "PNG")
        >>> image_size(file.getvalue())
        (8, 4, 'PNG')
    """
    image = opened(data, max_pixels)
    return image.width, image.height, str(image.format)


def opened(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image with its header read and no pixel decoded.

    Raises:
        DataError: As `decode_image`, as far as the header shows it.
    """
    with _pillow_as_needed:
        return _open(data, max_pixels)


def max_pixels_of(decode: Decode) -> int:
    """The limit of pixels that a decoder was given, `MAX_PIXELS` if none is known.

    Example:
        >>> max_pixels_of(partial(decode_image, max_pixels=10**9)), max_pixels_of(decode_image) == MAX_PIXELS
        (1000000000, True)
    """
    limit = decode.keywords.get("max_pixels", MAX_PIXELS) if isinstance(decode, partial) else MAX_PIXELS
    return int(limit)


class _PillowAsNeeded:
    """Pillow's global switches as they are needed here, as long as any thread decodes, whoever set them elsewhere.

    Truncated files are refused. Pixels are limited by `max_pixels` alone. Texts and colour profiles of a PNG, which are
    not shown, may be long: a picture is not refused for its captions.
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


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read."""
    if not data:
        raise DataError("undecodable image: the file is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise DataError(
            f"undecodable image: {len(data)} bytes that start with {data[:8]!r} are none of {known}"
        ) from error
    except Exception as error:
        raise DataError(f"undecodable image: {_reason(error)}") from error
    tags = getattr(image, "tag_v2", {})  # a tile of a TIFF can be larger than the image
    tile = [side for side in map(tags.get, _TILE_SIZE) if isinstance(side, int)]
    for width, height in [image.size, *([tile] if len(tile) == len(_TILE_SIZE) else [])]:
        if width * height > max_pixels:
            raise DataError(
                f"image of {width} x {height} pixels; at most {max_pixels} pixels are decoded - if you trust the file,"
                " raise max_pixels (decode=functools.partial(decode_image, max_pixels=...), or that of the build)"
            )
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """An image that is decoded already, read as `decode_image` reads it.

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
        raise DataError(f"undecodable {image.format} image: pixel type {image.mode!r} has no defined reading as RGB")
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
