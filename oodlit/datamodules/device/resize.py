"""Pillow's resizing of 8-bit images as whole-number arithmetic of tensors: the same pixels on every device."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import PIL
import torch
from torch import Tensor

_BITS = 22
"""Weights are multiples of 2^-22, as in Pillow: 8 bits of the pixel and 2 bits of overshoot fit into 32 beside them."""
_PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])
_MOST_VALUES = {"cuda": 2**26, "cpu": 2**18}
"""Products that are formed at a time, or those of one plane: many in few kernels, 256 MiB; few in a cache of 1 MiB."""


def _box(x: np.ndarray) -> np.ndarray:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(1.0 - np.abs(x), 0.0))


def _bicubic(x: np.ndarray) -> np.ndarray:
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3), 0.0)


@np.vectorize
def _sinc(x: float) -> float:
    """By C's sine, as in Pillow: NumPy's can differ in the last bit, which decides where two weights are a tie."""
    return 1.0 if x == 0.0 else math.sin(x * math.pi) / (x * math.pi)


FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""By torchvision's name: the filter, and how far it reaches."""


def resize(images: Tensor, height: int, width: int, filter: str = "bilinear") -> Tensor:
    """Images at another size, pixel by pixel as `PIL.Image.resize` gives them.

    Both resize one axis, round to 8 bits, and then the other. Torchvision's antialiased resizing of tensors differs by
    up to 2 of 255.

    Args:
        images: Shape (..., height, width), uint8, on any device; together they need fewer kernels.
        height: New number of rows, at least 1.
        width: New number of columns, at least 1.
        filter: A key of `FILTERS`.

    Example:
        >>> resize(torch.tensor([[[0, 100, 200, 40]]], dtype=torch.uint8), 1, 2).tolist()
        [[[71, 117]]]
    """
    axes = [(-1, width), (-2, height)]
    if _is_height_first(images.shape[-2], images.shape[-1], height, width):
        axes.reverse()
    planes = images.reshape(-1, *images.shape[-2:])
    for dim, size in axes:
        if planes.shape[dim] != size:
            places, weights = _taps(planes.shape[dim], size, filter, planes.device)
            most = max(1, _MOST_VALUES[planes.device.type] // (planes.shape[-3 - dim] * places.numel()))
            parts = [_weighted(part, dim, places, weights) for part in torch.split(planes, most)]
            planes = parts[0] if len(parts) == 1 else torch.cat(parts)
    return planes.reshape(*images.shape[:-2], height, width)


def _is_height_first(old_height: int, old_width: int, height: int, width: int) -> bool:
    """Which axis Pillow resizes first: the width, with exceptions for tall images that depend on its version."""
    if _PILLOW >= (13, 0):
        return old_height - height > max(0, 2 * (old_width - width))
    return _PILLOW >= (12, 2) and old_height > max(height, 100 * old_width)


def _weighted(planes: Tensor, dim: int, places: Tensor, weights: Tensor) -> Tensor:
    """Sums of neighbours along an axis."""
    neighbours = torch.unflatten(planes.index_select(dim, places.flatten()), dim, tuple(places.shape))
    products = neighbours * (weights if dim == -1 else weights[:, :, None])
    sums = products.sum(dim, dtype=torch.int32)
    rounded: Tensor = (sums + (1 << (_BITS - 1))) >> _BITS
    return rounded.clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=2048)
def _taps(before: int, after: int, filter: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each new pixel the places of the old ones that it is made of, and their weights; both (after, neighbours)."""
    function, reach = FILTERS[filter]
    scale = before / after
    stretch = max(scale, 1.0)
    support = reach * stretch
    centers = (np.arange(after) + 0.5) * scale
    first = np.maximum(centers - support + 0.5, 0.0).astype(np.int64)
    last = np.minimum((centers + support + 0.5).astype(np.int64), before)
    places = first[:, None] + np.arange(math.ceil(support) * 2 + 1)
    weights = function((places - centers[:, None] + 0.5) * (1.0 / stretch))
    weights = np.where(places < last[:, None], weights, 0.0)
    sums = np.add.accumulate(weights, axis=1)[:, -1:]  # one after the other, as Pillow adds them
    scaled = np.divide(weights, sums, out=weights, where=sums != 0) * (1 << _BITS)
    whole = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    used = max(1, int((last - first).max()))
    places = np.minimum(places, before - 1)
    return _moved(places[:, :used].astype(np.int32), device), _moved(whole[:, :used], device)


def _moved(values: np.ndarray, device: torch.device) -> Tensor:
    """The values on the device; a GPU is not waited for."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
