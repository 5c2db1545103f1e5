"""Convert the inputs of a gate (pictures, files or tensors) to batches of the network's input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeGuard

import torch
from PIL import Image
from torch import Tensor

from oodlit.base.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.datamodules.decode import Decode, decode_image, to_rgb
from oodlit.datamodules.stream_identity import decoder_of

CHUNK = 64
"""Largest number of images per forward pass."""

ImageLike: TypeAlias = Image.Image | bytes | Tensor
"""A picture, the bytes of an image file, or a transformed tensor (channels, height, width)."""


def batches_of(
    images: Any,
    keys: Sequence[str] | None,
    transform: Callable[..., Any] | None,
    shape: Sequence[int],
    *,
    one_shape: bool,
    decode: Callable[[bytes], Image.Image] = decode_image,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[Tensor, list[str] | None]]:
    """Yield batches of at most `CHUNK` transformed images, with their keys.

    Args:
        images: An `ImageLike`, a list of them, a tensor (batch, channels, height, width), or a mapping with "image" and
            optionally "key", as data loaders return it.
        keys: One per image, or None.
        transform: From a picture to a tensor.
        shape: Shape of a transformed image of the run.
        one_shape: Whether all images of the run had this shape; images of other heights and widths are then refused.
        decode: From the bytes of an image file to a picture.
        dtype: Type of the network's weights, which floating-point images are converted to.

    Raises:
        InvalidArgumentError: An image has another type or shape, or contains NaN or infinite values; or the numbers of
            keys and images differ.
        DataError: A file or a picture cannot be read.
    """
    if isinstance(images, Mapping):
        images, keys = images.get("image", images), images.get("key") if keys is None else keys
    if isinstance(images, Image.Image | bytes) or (_is_dense(images) and images.ndim in (0, len(shape))):
        images = [images]
    if not (isinstance(images, list | tuple) or _is_dense(images)):
        raise InvalidArgumentError(
            f'Gate: expected {_ONE}, a list or batch of these, or a mapping with "image", got {_kind(images)}'
        )
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(f"Gate: expected a list of keys, got {keys!r}")
    keys = None if keys is None else list(keys)
    if keys is not None and len(keys) != len(images):
        raise InvalidArgumentError(f"Gate: expected one key per image, got {len(keys)} keys for {len(images)} images")
    for start in range(0, len(images), CHUNK):
        chunk = range(start, min(start + CHUNK, len(images)))
        tensors = (_transformed(images[place], place, transform, decode) for place in chunk)
        made = [_checked(image, place, shape, one_shape).to(dtype) for place, image in zip(chunk, tensors, strict=True)]
        if len({image.shape for image in made}) > 1:
            sizes = ", ".join(sorted({str(tuple(image.shape)) for image in made}))
            raise InvalidArgumentError(f"Gate: expected transformed images of one shape, got the shapes {sizes}")
        batch = torch.stack(made)
        _check_finite(batch, start)
        yield batch, None if keys is None else [keys[place] for place in chunk]


def _is_dense(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a dense tensor with values: not sparse, nested or on the device "meta"."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_nested or value.is_meta)


_ONE = "a PIL image, the bytes of an image file, a transformed tensor"


def _transformed(
    image: object, place: int, transform: Callable[..., Any] | None, decode: Callable[[bytes], Image.Image]
) -> Tensor:
    if _is_dense(image):
        return image
    if not isinstance(image, Image.Image | bytes):
        raise InvalidArgumentError(f"Gate: image {place}: expected {_ONE}, got {_kind(image)}")
    if transform is None:
        raise InvalidArgumentError(f"Gate: image {place} is a picture, but the gate has no transform; pass tensors")
    try:
        picture = to_rgb(image if isinstance(image, Image.Image) else decode(image))
    except (DataError, OSError) as error:  # PIL opens a picture before it decodes it
        raise DataError(f"Gate: image {place} cannot be read ({error})") from error
    made = transform(picture)
    if not isinstance(made, Tensor):
        raise InvalidArgumentError(
            f"Gate: image {place}: expected the transform to return a tensor, got {type(made).__name__}; add ToTensor()"
        )
    return made


def _checked(image: Tensor, place: int, shape: Sequence[int], one_shape: bool) -> Tensor:
    """Refuse inputs with a shape or dtype that never occurred in the run: its threshold is not valid for them."""
    exact = len(shape) if one_shape else -2
    fits = image.ndim == len(shape) and tuple(image.shape[:exact]) == tuple(shape[:exact])
    if not fits or not image.is_floating_point():
        wanted = ", ".join(map(str, shape if one_shape else [*shape[:-2], "height", "width"]))
        raise InvalidArgumentError(
            f"Gate: image {place}: expected a floating-point tensor of shape ({wanted}) after the transform, as in the"
            f" run, got {image.dtype} of shape {tuple(image.shape)}; tensors must be transformed before they are passed"
        )
    return image


def _check_finite(batch: Tensor, start: int) -> None:
    """Refuse images with NaN or infinite values, even if the network only reads other pixels."""
    is_finite = batch.flatten(1).isfinite().all(dim=1)
    if bad := (~is_finite).nonzero().flatten().tolist():
        where = f"{len(bad)} images (first positions: {', '.join(str(start + place) for place in bad[:5])})"
        raise InvalidArgumentError(f"Gate: expected finite values after the transform, got NaN or infinity in {where}")


def _kind(value: object) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return "a numpy array; convert a picture with PIL.Image.fromarray, or transformed values with torch.from_numpy"
    if isinstance(value, Tensor) and not _is_dense(value):
        return f"a sparse, nested or meta tensor ({value.layout}, {value.device}); pass a dense tensor with values"
    return type(value).__name__


def decoder_for(recorded: str, decode: Decode | None) -> Decode:
    """Return the decoder of a gate.

    Args:
        recorded: The decoder of the run, as text; "" = the default one.
        decode: A decoder; None = the default one if the run had it, or else one that refuses every file.

    Raises:
        FingerprintError: The decoder is another one than that of the run.
    """

    def refuse(data: bytes) -> NoReturn:
        raise InvalidArgumentError(
            f"Gate: the run decoded files with {recorded}; pass this decoder as Gate.load(..., decode=...), or"
            " pass PIL images"
        )

    if decode is None and recorded:
        return refuse
    decode = decode_image if decode is None else decode
    if (found := decoder_of(decode)) != recorded:
        raise FingerprintError(
            f"Gate: expected decode={recorded or 'decode_image'}, as in the run, got {found or 'decode_image'}; pass"
            " the decoder of the run, or evaluate again"
        )
    return decode
