"""What a gate takes, as batches of the network's input: pictures, files, tensors, or a batch of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch import Tensor

from oodlit.datamodules.decode import decode_image, to_rgb
from oodlit.errors import DataError, InvalidArgumentError

CHUNK = 64
"""Images that go through the network at a time."""

ImageLike: TypeAlias = Image.Image | bytes | Tensor
"""A picture, the bytes of an image file, or a tensor (channels, height, width) as the transform gives it."""


def batches_of(
    images: Any,
    keys: Sequence[str] | None,
    transform: Callable[..., Any] | None,
    shape: Sequence[int],
    *,
    one_shape: bool,
) -> Iterator[tuple[Tensor, list[str] | None]]:
    """Batches of at most `CHUNK` transformed images, with their keys.

    Args:
        images: An `ImageLike`, a list of them, a tensor (batch, channels, height, width), or a mapping with "image", as
            loaders give it; its "key" are the keys then.
        keys: One for each image, or None.
        transform: From a picture to a tensor.
        shape: Of one transformed image of the run.
        one_shape: Whether all of them had it; images of other heights and widths are refused then.

    Raises:
        InvalidArgumentError: An image is of another kind or shape or has NaN or infinite values, or the number of keys
            is not that of the images.
        DataError: A file or a picture cannot be read.
    """
    if isinstance(images, Mapping):
        images, keys = images.get("image"), images.get("key") if keys is None else keys
    if isinstance(images, Image.Image | bytes) or (isinstance(images, Tensor) and images.ndim == len(shape)):
        images = [images]
    if not isinstance(images, list | tuple | Tensor):
        raise InvalidArgumentError(f"Gate: images are {_kind(images)}; {_NEEDED}")
    if keys is not None and len(keys) != len(images):
        raise InvalidArgumentError(f"Gate: {len(keys)} keys for {len(images)} images; one each is needed")
    for start in range(0, len(images), CHUNK):
        chunk = range(start, min(start + CHUNK, len(images)))
        made = [_checked(_transformed(images[place], place, transform), place, shape, one_shape) for place in chunk]
        if len({image.shape for image in made}) > 1:
            sizes = sorted({tuple(image.shape) for image in made})
            raise InvalidArgumentError(f"Gate: transformed images differ in shape: {sizes}; a batch needs one")
        batch = torch.stack(made)
        _check_finite(batch, start)
        yield batch, None if keys is None else [keys[place] for place in chunk]


_NEEDED = "a PIL image, the bytes of an image file, a transformed tensor, or a list of these is needed"


def _transformed(image: object, place: int, transform: Callable[..., Any] | None) -> Tensor:
    if isinstance(image, Tensor):
        return image
    if not isinstance(image, Image.Image | bytes):
        raise InvalidArgumentError(f"Gate: image {place} is {_kind(image)}; {_NEEDED}")
    if transform is None:
        raise InvalidArgumentError(f"Gate: image {place} is a picture, but this gate has no transform; give tensors")
    try:
        picture = to_rgb(image) if isinstance(image, Image.Image) else decode_image(image)
    except (DataError, OSError) as error:  # a picture is opened before it is decoded
        raise DataError(f"Gate: image {place} cannot be read: {error}") from error
    made = transform(picture)
    if not isinstance(made, Tensor):
        raise InvalidArgumentError(f"Gate: the transform gives {_kind(made)} for image {place}; a tensor is needed")
    return made


def _checked(image: Tensor, place: int, shape: Sequence[int], one_shape: bool) -> Tensor:
    """Refuse what the run had none of: no score of it says anything of such an image."""
    exact = len(shape) if one_shape else -2
    fits = image.ndim == len(shape) and tuple(image.shape[:exact]) == tuple(shape[:exact])
    if not fits or not image.is_floating_point():
        all_of = "all images of the run" if one_shape else "the images of the run"
        raise InvalidArgumentError(
            f"Gate: image {place} is a tensor of shape {tuple(image.shape)} and dtype {image.dtype}; {all_of} had shape"
            f" {tuple(shape)} and floating point after the transform - give pictures as PIL images, which go through it"
        )
    return image


def _check_finite(batch: Tensor, start: int) -> None:
    """Nothing is said of an image with NaN or infinite values, also where the network reads other pixels alone."""
    is_finite = batch.flatten(1).isfinite().all(dim=1)
    if bad := (~is_finite).nonzero().flatten().tolist():
        places = ", ".join(str(start + place) for place in bad[:5])
        raise InvalidArgumentError(
            f"Gate: image {places} after the transform: NaN or infinite values; nothing can be decided of them"
        )


def _kind(value: object) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return "a numpy array (PIL.Image.fromarray makes a picture of one)"
    return f"a {type(value).__name__}"
