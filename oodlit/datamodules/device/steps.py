"""From a composition of torchvision's and timm's steps to the same steps on tensors of any device."""

import copy
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from oodlit.datamodules.device.resize import FILTERS, resize
from oodlit.datamodules.transforms import PreparedTransform
from oodlit.errors import InvalidArgumentError

Step = Callable[[Tensor], Tensor]


class DeviceTransform:
    """The steps of a transform for decoded images as tensors, in whole numbers until the transform scales them.

    Args:
        transform: A composition of steps that `KNOWN` names, as torchvision, timm and open_clip make it, or a
            `PreparedTransform` of one.

    Raises:
        InvalidArgumentError: There is a step that is not known; names it.

    Example:
        >>> from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor
        >>> on_device = DeviceTransform(Compose([Resize(4), CenterCrop(4), ToTensor(), Normalize([0.5], [0.5])]))
        >>> shaped = on_device.shaped(torch.full((3, 8, 6), 255, dtype=torch.uint8))
        >>> shaped.shape, shaped.dtype, on_device.scaled(shaped[None]).unique()
        (torch.Size([3, 4, 4]), torch.uint8, tensor([1.]))
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        prepared = transform if isinstance(transform, PreparedTransform) else None
        self._ready_size = None if prepared is None else prepared.size
        self._shaping, self._scaling = _parts(transform if prepared is None else prepared.whole)

    def shaped(self, images: Tensor) -> Tensor:
        """Images (..., 3, height, width), resized and cropped; uint8, as they are given."""
        if tuple(images.shape[-2:]) == self._ready_size:
            return images
        for step in self._shaping:
            images = step(images)
        return images

    def scaled(self, images: Tensor) -> Tensor:
        """The network's input, from images (..., 3, height, width) that have been shaped."""
        for step in self._scaling:
            images = step(images)
        return images

    def level(self) -> Tensor:
        """What a pixel that is larger by 1 of 255 adds to the network's input; shape (3, 1, 1).

        Raises:
            InvalidArgumentError: The steps do not fit each other.
        """
        try:
            white, black = (self.scaled(torch.full((3, 1, 1), value, dtype=torch.uint8)) for value in (255, 0))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"transform: its steps fail on an image of one pixel: {error}") from error
        return (white.double() - black.double()) / 255

    def check(self, transform: Callable[..., Any]) -> None:
        """Compare the steps on tensors with the transform itself, for a small image.

        Steps can go by the type of what they are given (`ToDtype` with a type for each), and be in an order that is not
        possible for Pillow images.

        Raises:
            InvalidArgumentError: They give something else.
        """
        pixels = (torch.arange(40 * 48 * 3) * 97 % 251).to(torch.uint8).view(40, 48, 3)
        try:
            exact, made = transform(Image.fromarray(pixels.numpy())), self.scaled(self.shaped(pixels.permute(2, 0, 1)))
        except Exception as error:
            raise InvalidArgumentError(
                f"transform: it fails on an image of 48 x 40: {type(error).__name__}: {error}"
            ) from error
        if _kind(exact) != _kind(made):
            difference = f"{_kind(made)} where the transform itself gives {_kind(exact)}"
        elif torch.allclose(exact.double(), made.double(), rtol=1e-4, atol=1e-3 * float(self.level().abs().max())):
            return
        else:
            difference = "other values than the transform itself"
        raise InvalidArgumentError(
            f"decode_on_device: on tensors, the steps of the transform {transform!r} give {difference}; leave"
            " decode_on_device out, and the workers apply it"
        )


def _kind(made: Any) -> str:
    return f"{tuple(made.shape)} of {made.dtype}" if isinstance(made, Tensor) else type(made).__name__


def _parts(transform: Callable[..., Any]) -> tuple[list[Step], list[Step]]:
    """Steps that shape an image, and those after the step that makes a tensor of it."""
    shaping: list[Step] = []
    scaling: list[Step] = []
    is_tensor = False
    for step in _flat(transform):
        name = _name(step)
        kind, make = KNOWN.get(name, ("", _nothing))
        if not kind or (kind == "shape" and is_tensor) or (kind == "scale" and not is_tensor):
            raise InvalidArgumentError(
                f"decode_on_device: the step {step!r} of the transform is not known on a device"
                f"{' at this place' * bool(kind)}; leave decode_on_device out, and the workers apply it"
            )
        if kind == "tensor":
            is_tensor = True
        (shaping if kind == "shape" else scaling).append(make(step))
    if not is_tensor:
        raise InvalidArgumentError(
            f"decode_on_device: the transform {transform!r} makes no tensor; it needs a step such as ToTensor()"
        )
    return shaping, scaling


def _flat(transform: Any) -> list[Any]:
    if _name(transform) == ("torchvision", "Compose"):
        return [step for part in transform.transforms for step in _flat(part)]
    return [transform]


def _name(step: Any) -> tuple[str, str]:
    """Package and name of a step's class, or of a step that is a function."""
    kind = step if isinstance(step, types.FunctionType) else type(step)
    return kind.__module__.partition(".")[0], kind.__name__


def _nothing(step: Any) -> Step:
    return lambda images: images


def _as_it_is(step: Any) -> Step:
    """Steps that do the same to tensors: crops by whole numbers, and changes of the type."""
    made: Step = step
    return made


def _padded(step: Any) -> Step:
    """Torchvision pads tensors with one number alone: channels with fills of their own are padded one by one."""
    if not isinstance(step.fill, Sequence):
        return _as_it_is(step)
    steps = [copy.copy(step) for _ in step.fill]
    for one, fill in zip(steps, step.fill, strict=True):
        one.fill = fill
    return lambda images: torch.stack([one(images[..., i, :, :]) for i, one in enumerate(steps)], dim=-3)


def _divided(step: Any) -> Step:
    return lambda images: images.to(torch.get_default_dtype()).div(255)


def _converted(step: Any) -> Step:
    return lambda images: images.to(step.dtype)


def _resize(step: Any) -> Step:
    """As for a Pillow image; which size that gets, the step itself says, from an image without memory."""
    filter = str(getattr(step.interpolation, "value", step.interpolation))  # of an enumeration
    if filter not in FILTERS:
        raise InvalidArgumentError(
            f"decode_on_device: the step {step!r} interpolates by {filter!r}, one of {', '.join(FILTERS)} is needed;"
            " leave decode_on_device out, and the workers apply it"
        )

    sized = copy.copy(step)
    sized.interpolation = type(step.interpolation)("nearest")  # tensors are not resized by all filters

    @lru_cache(maxsize=4096)
    def size_of(height: int, width: int) -> tuple[int, int]:
        made = sized(torch.empty(1, height, width, dtype=torch.uint8, device="meta"))
        return made.shape[1], made.shape[2]

    return lambda images: resize(images, *size_of(images.shape[-2], images.shape[-1]), filter)


def _normalized(step: Any) -> Step:
    """(images - mean) / sd, with both on the device since the first batch: moving them would be waited for."""

    @lru_cache(maxsize=8)
    def on(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(v, dtype=dtype).view(-1, 1, 1).to(device) for v in (step.mean, step.std))

    def normalized(images: Tensor) -> Tensor:
        if not images.is_floating_point():
            made: Tensor = step(images)  # torchvision's own error
            return made
        mean, std = on(images.device, images.dtype)
        return (images - mean) / std

    return normalized


KNOWN: dict[tuple[str, str], tuple[str, Callable[[Any], Step]]] = {
    ("torchvision", "Resize"): ("shape", _resize),
    ("timm", "ResizeKeepRatio"): ("shape", _resize),
    ("torchvision", "CenterCrop"): ("shape", _as_it_is),
    ("timm", "CenterCropOrPad"): ("shape", _padded),
    ("open_clip", "_convert_to_rgb"): ("shape", _nothing),  # images are RGB
    ("torchvision", "ToTensor"): ("tensor", _divided),
    ("timm", "MaybeToTensor"): ("tensor", _divided),
    ("timm", "ToTensor"): ("tensor", _converted),
    ("torchvision", "PILToTensor"): ("tensor", _nothing),
    ("torchvision", "ToImage"): ("tensor", _nothing),
    ("timm", "MaybePILToTensor"): ("tensor", _nothing),
    ("torchvision", "ConvertImageDtype"): ("scale", _as_it_is),
    ("torchvision", "ToDtype"): ("scale", _as_it_is),
    ("torchvision", "Normalize"): ("scale", _normalized),
}
"""By package and class: "shape" steps come before the one that makes a "tensor", those that "scale" after it."""
