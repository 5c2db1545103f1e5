"""Describe a transform as plain values from which a service can rebuild it."""

import enum
from collections.abc import Callable
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.lazy import import_object
from oodlit.base.value_description import describe

TRANSFORMS = ("torchvision.transforms.", "timm.data.transforms.")
"""Modules with classes that can be rebuilt from a record. Functions may come from any module, since they are not
called."""
_LARGEST_TENSOR = 64


def recipe_of(transform: object) -> Any:
    """Describe a transform as plain values for `made_from`; None if that is impossible.

    Steps of torchvision and timm are described by their constructor arguments, and functions by their dotted path. The
    recipe is verified: the rebuilt transform must have the same description.

    Example:
        >>> from torchvision.transforms import CenterCrop, Compose, ToTensor
        >>> made_from(recipe_of(Compose([CenterCrop(4), ToTensor()])))
        Compose(
            CenterCrop(size=(4, 4))
            ToTensor()
        )
        >>> recipe_of(lambda image: image) is None
        True
    """
    try:
        recipe = _written(transform)
        return recipe if describe(made_from(recipe)) == describe(transform) else None
    except Exception:  # constructors may raise anything; without a recipe a gate requires the transform
        return None


def made_from(recipe: Any) -> Any:
    """Rebuild a transform from its recipe.

    Raises:
        InvalidArgumentError: It names something that cannot be imported, or a class outside `TRANSFORMS`.
    """
    if isinstance(recipe, list):
        return [made_from(part) for part in recipe]
    if not isinstance(recipe, dict):
        return recipe
    kind, value = next(iter(recipe.items()))
    if kind in _REBUILT:
        return _REBUILT[kind](value)
    made = _located(value) if value.startswith(TRANSFORMS) else None
    if not isinstance(made, type):
        raise InvalidArgumentError(
            f"saved transform: expected a class of {' or '.join(name.rstrip('.') for name in TRANSFORMS)}, got"
            f" {value!r}; pass the transform again with Gate.load(..., transform=...)"
        )
    return made(recipe["value"]) if kind == "enum" else made(**{n: made_from(v) for n, v in recipe["with"].items()})


def _written(value: Any) -> Any:
    if isinstance(value, list | tuple):
        parts = [_written(part) for part in value]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, str | int | float | None):
        return value
    for kind, describe_value in _DESCRIBED.items():
        if isinstance(value, kind):
            return describe_value(value)
    arguments = {name: _written(getattr(value, name)) for name in signature(type(value)).parameters}
    return {"class": _path(type(value)), "with": arguments}


def _path(value: Callable[..., Any] | type) -> str:
    path = f"{value.__module__}.{value.__qualname__}"
    if _located(path) is not value or value.__module__ == "__main__":
        raise InvalidArgumentError(
            f"{path} cannot be imported again; define it at the top level of a module other than __main__"
        )
    return path


def _located(path: str) -> Any:
    return import_object(path, f"saved transform: {path!r}")


def _written_tensor(value: Tensor) -> dict[str, Any]:
    if value.dtype != torch.float32 or value.numel() > _LARGEST_TENSOR:
        raise InvalidArgumentError(
            f"saved transform: expected float32 tensors of at most {_LARGEST_TENSOR} values, got {value.numel()}"
            f" values in {value.dtype}; pass the transform again with Gate.load(..., transform=...)"
        )
    return {"tensor": value.tolist()}


_DESCRIBED: dict[type, Callable[[Any], Any]] = {
    Tensor: _written_tensor,
    enum.Enum: lambda value: {"enum": _path(type(value)), "value": value.value},
    FunctionType: lambda value: {"function": _path(value)},
    torch.dtype: lambda value: {"dtype": str(value).removeprefix("torch.")},
}
_REBUILT: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda parts: tuple(made_from(part) for part in parts),
    "tensor": torch.tensor,
    "dtype": lambda name: getattr(torch, name),
    "function": _located,
}
