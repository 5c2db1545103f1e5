"""Detect boxes that are not in pixels of their image: they would hit nothing, and all objects would look dismissed."""

import numpy as np
from jaxtyping import Bool, Float, Int

_RELATIVE = 1.5
"""Largest coordinate of boxes relative to width and height, which networks can exceed slightly."""
_SIDE = 12
"""Smallest side of an image, in pixels, for which relative boxes are detected."""


def are_outside(
    boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"], *, tolerance: float = 1.0
) -> Bool[np.ndarray, " boxes"]:
    """Which boxes lie completely outside of their image.

    Args:
        boxes: xmin, ymin, xmax, ymax.
        sizes: Width and height of the image of every box.
        tolerance: Tolerance in pixels, for rounding.

    Example:
        >>> are_outside(np.array([[60.0, 0, 99, 9], [70, 0, 99, 9]]), np.array([[64, 48], [64, 48]])).tolist()
        [False, True]
    """
    beyond: np.ndarray = np.hstack([boxes[:, :2] > sizes + tolerance, boxes[:, 2:] < -tolerance])
    return np.asarray(beyond.any(axis=1))


def are_relative(boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"]) -> bool:
    """Whether all boxes look relative to width and height: at most 1.5 in images that are much larger.

    Example:
        >>> are_relative(np.array([[0.1, 0, 0.9, 1]]), np.array([[64, 48]]))
        True
    """
    return len(boxes) > 0 and bool(np.abs(boxes).max() <= _RELATIVE) and bool(sizes.min() >= _SIDE)
