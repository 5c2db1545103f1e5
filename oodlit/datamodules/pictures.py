"""Turn samples into viewable images for thumbnails."""

from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor

from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.stream import Sample


class NoPictureWarning(UserWarning):
    """Warning for images that cannot be shown and are left out."""


class NoPictureError(Exception):
    """Raised for a sample that cannot be shown; the message is the reason."""


def picture(sample: Sample, decode: Callable[[bytes], Image.Image]) -> Image.Image:
    """A viewable RGB image of a sample.

    Tensors with one channel (gray) or three are shown unchanged if their values are uint8, boolean or within [0, 1];
    others, such as normalized ones, are stretched from their smallest to their largest value.

    Raises:
        NoPictureError: The sample is unusable, or not an image.

    Example:
        >>> picture(Sample("a", torch.ones(1, 2, 2)), Image.open).getpixel((0, 0))
        (255, 255, 255)
    """
    if sample.error is not None:
        raise NoPictureError(sample.error)
    try:
        if isinstance(sample.image, bytes):
            return decode(sample.image)
        return _drawn(sample.image) if isinstance(sample.image, Tensor) else sample.image.convert("RGB")
    except NoPictureError:
        raise
    except Exception as error:  # a thumbnail must not fail a run, and decoders may be the user's
        raise NoPictureError(describe_error(error)) from error


def _drawn(values: Tensor) -> Image.Image:
    values = values.detach().cpu()
    shown = values[None] if values.dim() == 2 else values
    if shown.dim() != 3 or shown.shape[0] not in (1, 3) or not shown.numel():
        raise NoPictureError(f"expected shape (1 or 3, height, width), got {tuple(values.shape)}")
    if shown.is_complex():
        raise NoPictureError("complex values cannot be shown")
    if shown.dtype != torch.uint8:
        is_light = shown.dtype == torch.bool or (shown.dtype.is_floating_point and 0 <= shown.min() <= shown.max() <= 1)
        shown = shown if shown.dtype.is_floating_point else shown.double()
        if not shown.isfinite().all():
            raise NoPictureError("values are not finite")
        if not is_light:
            spread = shown.max() - shown.min()
            shown = (shown - shown.min()) / (spread if spread > 0 else 1)
        shown = (shown * 255).round().byte()
    return Image.fromarray(shown.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
