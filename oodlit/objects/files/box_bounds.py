"""Detect boxes that are not in pixels of their image: such boxes would hit no object."""

import numpy as np
from jaxtyping import Bool, Float, Int

from oodlit.objects.files.file_problems import Problems

_RELATIVE = 1.5
"""Largest coordinate of boxes relative to width and height, which networks can exceed slightly."""
_SIDE = 12
"""Smallest side of an image, in pixels, for which relative boxes are detected."""
_LEAST = 0.1
"""Smallest fraction of relative boxes that is a problem: real boxes of a pixel in the upper left corner are rare."""


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


def are_relative(boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"]) -> Bool[np.ndarray, " boxes"]:
    """Which boxes look relative to width and height: their coordinates are at most 1.5 in a much larger image.

    Args:
        boxes: xmin, ymin, xmax, ymax.
        sizes: Width and height of the image of every box.

    Example:
        >>> are_relative(np.array([[0.1, 0, 0.9, 1], [0, 0, 2, 1]]), np.array([[64, 48], [64, 48]])).tolist()
        [True, False]
    """
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    return np.asarray(has_area & (np.abs(boxes).max(axis=1) <= _RELATIVE) & (sizes.min(axis=1) >= _SIDE))


def check_relative(boxes: Float[np.ndarray, "boxes 4"], sizes: Int[np.ndarray, "boxes 2"], problems: Problems) -> None:
    """Add the boxes that look relative as a problem, unless they are few or all in whole numbers: pixels, then."""
    relative = are_relative(boxes, sizes)
    if len(boxes) and relative.mean() >= _LEAST and (boxes[relative] % 1 != 0).any():
        row = int(relative.argmax())
        problems.add(
            "boxes are given relative to the size of their image",
            f"{boxes[row].tolist()} in an image of {sizes[row][0]} x {sizes[row][1]}",
            "expected pixels; multiply the boxes by width and height",
            count=int(relative.sum()),
        )
