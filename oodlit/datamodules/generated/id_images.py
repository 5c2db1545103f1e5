"""Decode the ID images that generated images are based on."""

from PIL import Image

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.datamodules.decode import Decode
from oodlit.datamodules.stream import Sample


def decode_sample(sample: Sample, decode: Decode) -> Image.Image:
    """The image of a sample, in RGB.

    Raises:
        DataError: The sample is unusable, or its file cannot be decoded.
        InvalidArgumentError: The sample is a tensor.
    """
    where = f"ID image {sample.key!r}" + (f" ({sample.origin})" if sample.origin else "")
    if sample.error is not None:
        raise DataError(f"{where}: {sample.error}")
    if isinstance(sample.image, Image.Image):
        return sample.image.convert("RGB")
    if not isinstance(sample.image, bytes):
        text = "unit tests and corruptions cannot be generated from tensors"
        raise InvalidArgumentError(f"{where}: expected an image file or a PIL image, got a tensor; {text}")
    try:
        return decode(sample.image)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
