"""The orientation of a picture: as stored, or turned by its EXIF data, as programs display it."""

import struct
from typing import Literal

from PIL import ExifTags, Image

from oodlit.base.errors import DataError
from oodlit.datamodules.decode import decode_image, open_image

Orientation = Literal["stored", "displayed"]

_MARKS = (b"Exif", b"eXIf", b"EXIF")  # of JPEG, PNG and WebP
_TIFF = (b"II*\0", b"MM\0*")
_METHOD = Image.Transpose
_TURNS = {
    2: _METHOD.FLIP_LEFT_RIGHT,
    3: _METHOD.ROTATE_180,
    4: _METHOD.FLIP_TOP_BOTTOM,
    5: _METHOD.TRANSPOSE,
    6: _METHOD.ROTATE_270,
    7: _METHOD.TRANSVERSE,
    8: _METHOD.ROTATE_90,
}
"""How the stored pixels are displayed, by the value of the orientation; 1 = as they are."""
_BACK = {6: 8, 8: 6}


def turned(data: bytes, size: tuple[int, int], orientation: Orientation | None) -> bytes | Image.Image:
    """Turn a picture to the orientation that its boxes refer to.

    Args:
        data: The file.
        size: Width and height in the annotations.
        orientation: Whether boxes refer to the picture as stored or as displayed. None = the one with the annotated
            width and height.

    Returns:
        The file, if decoding it returns the picture in this orientation, otherwise the turned picture.

    Raises:
        DataError: `orientation` is None, and width and height are the same as stored and as displayed, although the
            pictures differ; or the file cannot be decoded.

    Example:
        >>> import io
        >>> exif, file = Image.Exif(), io.BytesIO()
        >>> exif[ExifTags.Base.Orientation] = 6
        >>> Image.new("RGB", (8, 4)).save(file, "JPEG", exif=exif)
        >>> turned(file.getvalue(), (4, 8), None).size, type(turned(file.getvalue(), (8, 4), None)).__name__
        ((4, 8), 'bytes')
    """
    if not (any(mark in data for mark in _MARKS) or data.startswith(_TIFF)):
        return data
    image = open_image(data)
    turn = _turn(image)
    if turn not in _TURNS:
        return data
    is_tiff = image.format == "TIFF"  # Pillow turns TIFF files itself
    displayed = image.size if is_tiff or turn < 5 else image.size[::-1]
    stored = displayed[::-1] if turn >= 5 else displayed
    if orientation is None:
        if stored == displayed:
            raise DataError(
                f"EXIF orientation {turn} keeps the size of the picture, so the size does not show whether boxes refer"
                " to the stored or the displayed picture; pass orientation='stored' or 'displayed' to the benchmark"
            )
        orientation = "displayed" if size == displayed else "stored"
    if (orientation == "displayed") == is_tiff:
        return data
    return decode_image(data).transpose(_TURNS[_BACK.get(turn, turn) if is_tiff else turn])


def _turn(image: Image.Image) -> int:
    """The orientation in the EXIF data; 1 if there is none, or if it is not readable."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (OSError, SyntaxError, TypeError, ValueError, struct.error):
        return 1
