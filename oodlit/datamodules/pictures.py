"""From a sample to a picture that a person can look at, or the reason why there is none."""

from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor

from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.stream import Sample


class NoPictureWarning(UserWarning):
    """Images that cannot be shown are left out."""


class NoPictureError(Exception):
    """A sample cannot be shown; the message is the reason."""


def picture(sample: Sample, decode: Callable[[bytes], Image.Image]) -> Image.Image:
    """The picture of a sample, in RGB.

    Tensors of one channel (grey) or three are shown as they are if their values are uint8, boolean or lie in [0, 1];
    others, such as normalised ones, are stretched from their smallest to their largest value.

    Raises:
        NoPictureError: The sample cannot be used, or is no picture.

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
    except Exception as error:  # a picture is never worth a run, and decoders may be the user's
        raise NoPictureError(describe_error(error)) from error


def _drawn(values: Tensor) -> Image.Image:
    values = values.detach().cpu()
    shown = values[None] if values.dim() == 2 else values
    if shown.dim() != 3 or shown.shape[0] not in (1, 3) or not shown.numel():
        raise NoPictureError(f"shape {tuple(values.shape)}; one or three channels, height and width make a picture")
    if shown.is_complex():
        raise NoPictureError("complex numbers are no colours")
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
