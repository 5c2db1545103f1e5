"""Apply a composition of torchvision's and timm's steps to batches of decoded images on any device."""

import copy
import types
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.datamodules.transforms import PreparedTransform

Step = Callable[[Tensor], Tensor]

LEAVE_OUT = "omit decode_on_device to run the transform in workers"
_INTERPOLATIONS = ("bilinear", "bicubic")
_LARGEST_DIFFERENCE = 3
"""Tolerance on the scale 0 to 255: torchvision's antialiased resizing of tensors differs from Pillow's by up to 2."""


class DeviceTransform:
    """A transform for images that are tensors (..., 3, height, width) of type uint8.

    Args:
        transform: A composition of the steps in `KNOWN`, as torchvision, timm and open_clip build it, or a
            `PreparedTransform` of one.

    Raises:
        InvalidArgumentError: A step is not supported; the message names it.

    Example:
        >>> from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor
        >>> on_device = DeviceTransform(Compose([Resize(4), CenterCrop(4), ToTensor(), Normalize([0.5], [0.5])]))
        >>> on_device(torch.full((1, 3, 8, 6), 255, dtype=torch.uint8)).unique()
        tensor([1.])
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._ready_size: tuple[int, int] | None = None
        self._ready_steps: list[Step] = []
        if isinstance(transform, PreparedTransform):
            self._ready_size, self._ready_steps = transform.size, _steps(transform.transforms)
            transform = transform.whole
        self._steps = _steps([transform])

    def __call__(self, images: Tensor) -> Tensor:
        """Return the network's input for images of one size."""
        is_ready = tuple(images.shape[-2:]) == self._ready_size
        for step in self._ready_steps if is_ready else self._steps:
            images = step(images)
        return images

    def level(self) -> Tensor:
        """Return the change of the network's input when a pixel (0 to 255) grows by 1; shape (channels, 1, 1).

        Raises:
            InvalidArgumentError: The steps do not fit each other.
        """
        white, black = (_try(self, torch.full((3, 40, 48), value, dtype=torch.uint8)) for value in (255, 0))
        center = (..., slice(white.shape[-2] // 2, None), slice(white.shape[-1] // 2, None))
        grown: Tensor = ((white.double() - black.double()) / 255)[center][..., :1, :1]
        return grown

    def check(self, transform: Callable[..., Any]) -> None:
        """Compare the steps on tensors with the transform itself, for a small image.

        Steps can depend on the type of their input, such as `ToDtype` with a type for each kind of image.

        Raises:
            InvalidArgumentError: The results differ.
        """
        # far from 0 and 255, where Pillow clips bicubic overshoot after each axis
        pixels = (60 + torch.arange(40 * 48 * 3) * 97 % 131).to(torch.uint8).view(40, 48, 3)
        exact, made = _try(transform, Image.fromarray(pixels.numpy())), _try(self, pixels.permute(2, 0, 1))
        if _kind(exact) != _kind(made):
            difference = f"{_kind(made)} for a tensor, but {_kind(exact)} for a PIL image of the same picture"
        elif bool(((exact.double() - made.double()).abs() <= _LARGEST_DIFFERENCE * self.level().abs()).all()):
            return
        else:
            difference = "different values for a tensor and for a PIL image of the same picture"
        raise InvalidArgumentError(f"decode_on_device: the transform {transform!r} returns {difference}; {LEAVE_OUT}")


def _try(transform: Callable[[Any], Any], image: Any) -> Any:
    try:
        return transform(image)
    except Exception as error:
        raise InvalidArgumentError(
            f"decode_on_device: the transform failed on a test image of 48 x 40 pixels ({type(error).__name__}:"
            f" {error}); {LEAVE_OUT}"
        ) from error


def _kind(made: Any) -> str:
    return f"shape {tuple(made.shape)} and dtype {made.dtype}" if isinstance(made, Tensor) else type(made).__name__


def _steps(transforms: Iterable[Any]) -> list[Step]:
    """Return the steps of a transform for tensors, without nesting."""
    steps: list[Step] = []
    for step in transforms:
        # package and name of the class, or of a step that is a function
        kind = step if isinstance(step, types.FunctionType) else type(step)
        name = kind.__module__.partition(".")[0], kind.__name__
        if name == ("torchvision", "Compose"):
            steps += _steps(step.transforms)
        elif name in KNOWN:
            steps.append(KNOWN[name](step))
        else:
            raise InvalidArgumentError(f"decode_on_device does not support the transform step {step!r}; {LEAVE_OUT}")
    return steps


def _unchanged(step: Any) -> Step:
    """Leave out the step: images are already RGB, or tensors."""
    return lambda images: images


def _itself(step: Step) -> Step:
    """Return the step unchanged: it does the same to tensors."""
    return step


def _scaled(step: Any) -> Step:
    return lambda images: images.to(torch.get_default_dtype()).div(255)


def _resized(step: Any) -> Step:
    name = str(getattr(step.interpolation, "value", step.interpolation))  # of an enumeration
    if name not in _INTERPOLATIONS:
        raise InvalidArgumentError(
            f"decode_on_device: expected interpolation {' or '.join(_INTERPOLATIONS)}, got {name!r} in {step!r};"
            f" {LEAVE_OUT}"
        )
    own = copy.copy(step)
    if hasattr(own, "antialias"):
        own.antialias = True  # as Pillow, whatever the step says
    return _itself(own)


def _normalized(step: Any) -> Step:
    """(images - mean) / std, with both on the device since the first batch: moving them would wait for the GPU."""

    @lru_cache(maxsize=8)
    def on(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(v, dtype=dtype).view(-1, 1, 1).to(device) for v in (step.mean, step.std))

    def normalized(images: Tensor) -> Tensor:
        if not images.is_floating_point():
            return _itself(step)(images)  # raises torchvision's own error
        mean, std = on(images.device, images.dtype)
        return (images - mean) / std

    return normalized


KNOWN: dict[tuple[str, str], Callable[[Any], Step]] = {
    ("torchvision", "Resize"): _resized,
    ("timm", "ResizeKeepRatio"): _resized,
    ("torchvision", "CenterCrop"): _itself,
    ("open_clip", "_convert_to_rgb"): _unchanged,
    ("torchvision", "ToTensor"): _scaled,
    ("timm", "MaybeToTensor"): _scaled,
    ("timm", "ToTensor"): lambda step: lambda images: images.to(step.dtype),
    ("torchvision", "PILToTensor"): _unchanged,
    ("torchvision", "ToImage"): _unchanged,
    ("timm", "MaybePILToTensor"): _unchanged,
    ("torchvision", "ConvertImageDtype"): _itself,
    ("torchvision", "ToDtype"): _itself,
    ("torchvision", "Normalize"): _normalized,
}
"""Steps that are supported, by package and class."""
