"""Boxes that cannot be in pixels of their image: they would hit nothing, and every object would look dismissed."""

import numpy as np
from jaxtyping import Bool, Float, Int

_RELATIVE = 1.5
"""No coordinate is larger where all are shares of width and height, which networks may overstep a little."""
_SIDE = 12
"""Pixels from which on a side of an image is not taken for a share."""


def are_outside(
    boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"], *, tolerance: float = 1.0
) -> Bool[np.ndarray, " boxes"]:
    """Which boxes lie outside of their image altogether.

    Args:
        boxes: xmin, ymin, xmax, ymax.
        sizes: Width and height of the image of every box.
        tolerance: Pixels of rounding.

    Example:
        >>> are_outside(np.array([[60.0, 0, 99, 9], [70, 0, 99, 9]]), np.array([[64, 48], [64, 48]])).tolist()
        [False, True]
    """
    beyond: np.ndarray = np.hstack([boxes[:, :2] > sizes + tolerance, boxes[:, 2:] < -tolerance])
    return np.asarray(beyond.any(axis=1))


def are_relative(boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"]) -> bool:
    """Whether all boxes look like shares of width and height: within a pixel or two of images that are much larger.

    Example:
        >>> are_relative(np.array([[0.1, 0, 0.9, 1]]), np.array([[64, 48]]))
        True
    """
    return len(boxes) > 0 and bool(np.abs(boxes).max() <= _RELATIVE) and bool(sizes.min() >= _SIDE)
