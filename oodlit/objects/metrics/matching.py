"""Match predicted boxes with annotated objects: each box with the object it overlaps most."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from oodlit.base.errors import InvalidArgumentError

_PAIRS = 1 << 20
"""Pairs of a box and an object per block; limits the memory."""


@dataclass(frozen=True, eq=False)
class Objects:
    """Annotated objects.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels, float64, shape (objects, 4).
        image: Position of the image of every object, int64, shape (objects,).
        classes: Class of every object, int64, shape (objects,); None = a single class.
    """

    boxes: np.ndarray
    image: np.ndarray
    classes: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.boxes)


class BestOverlaps(NamedTuple):
    """The object that each box overlaps most.

    Args:
        objects: Position of the object, int64, shape (boxes,); -1 = none.
        overlaps: Intersection over union with it, float64, shape (boxes,); 0 without an object.
    """

    objects: np.ndarray
    overlaps: np.ndarray


def iou_pairs(
    boxes: Float[np.ndarray, "pairs 4"], objects: Float[np.ndarray, "pairs 4"], *, extent: float = 0.0
) -> Float[np.ndarray, " pairs"]:
    """Compute the intersection over union of pairs of boxes, in float64; 0 if both have no area.

    Args:
        boxes: xmin, ymin, xmax, ymax.
        objects: The same.
        extent: Added to every width and height: 1 for programs whose boxes include the last pixel.

    Example:
        >>> iou_pairs(np.array([[0.0, 0, 4, 4]]), np.array([[0.0, 0, 4, 2]])).tolist()
        [0.5]
        >>> iou_pairs(np.array([[0.0, 0, 3, 3]]), np.array([[0.0, 0, 3, 1]]), extent=1).tolist()
        [0.5]
    """
    intersection = _intersections(boxes, objects, extent)
    return _shares(intersection, _areas(boxes, extent) + _areas(objects, extent) - intersection)


def share_within(
    boxes: Float[np.ndarray, "pairs 4"], objects: Float[np.ndarray, "pairs 4"]
) -> Float[np.ndarray, " pairs"]:
    """Compute the share of each box inside an object: COCO's overlap with a crowd; 0 if the box has no area."""
    return _shares(_intersections(boxes, objects), _areas(boxes))


def _intersections(boxes: np.ndarray, objects: np.ndarray, extent: float = 0.0) -> np.ndarray:
    inner = np.minimum(boxes[:, 2:], objects[:, 2:]) - np.maximum(boxes[:, :2], objects[:, :2]) + extent
    return np.asarray(np.maximum(inner, 0.0).prod(axis=1))


def _areas(boxes: np.ndarray, extent: float = 0.0) -> np.ndarray:
    return np.asarray((boxes[:, 2:] - boxes[:, :2] + extent).prod(axis=1))


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    shares = np.zeros(len(whole))
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares


def best_overlaps(
    boxes: Float[np.ndarray, "boxes 4"],
    image: Int[np.ndarray, " boxes"],
    objects: Objects,
    *,
    classes: Int[np.ndarray, " boxes"] | None = None,
    extent: float = 0.0,
) -> BestOverlaps:
    """Find the object that each box overlaps most, in the same image.

    Ties are resolved by the coordinates of the objects, so that the order of images, boxes and objects does not matter.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels.
        image: Position of the image of every box.
        objects: The annotated objects.
        classes: Class of every box: only objects of the same class count. None = all objects count.
        extent: See `iou_pairs`.

    Raises:
        InvalidArgumentError: The boxes have classes, but the objects have none.

    Example:
        >>> objects = Objects(np.array([[0.0, 0, 4, 4], [4, 0, 8, 4]]), np.array([0, 0]))
        >>> found = best_overlaps(np.array([[3.0, 0, 8, 4], [9, 9, 10, 10]]), np.array([0, 0]), objects)
        >>> found.objects.tolist(), found.overlaps.tolist()
        ([1, -1], [0.8, 0.0])
    """
    if classes is not None and objects.classes is None:
        raise InvalidArgumentError("best_overlaps: got classes of boxes, but not of objects; pass both or neither")
    boxes, target = np.asarray(boxes, dtype=np.float64), np.asarray(objects.boxes, dtype=np.float64)
    order = np.lexsort((*target.T[::-1], objects.image))
    ordered_image = np.asarray(objects.image)[order]
    first = np.searchsorted(ordered_image, image, side="left")
    count = np.searchsorted(ordered_image, image, side="right") - first
    found = np.full(len(boxes), -1, dtype=np.int64)
    overlaps = np.zeros(len(boxes))
    near = np.flatnonzero(count)
    cuts = np.flatnonzero(np.diff(np.cumsum(count[near]) // _PAIRS)) + 1  # into blocks of about as many pairs
    for rows in np.split(near, cuts):
        if not len(rows):
            continue
        n = count[rows]
        starts = np.cumsum(n) - n
        of_pair = np.repeat(np.arange(len(rows)), n)
        place = order[np.repeat(first[rows] - starts, n) + np.arange(n.sum())]
        value = iou_pairs(boxes[rows][of_pair], target[place], extent=extent)
        if classes is not None and objects.classes is not None:
            value[objects.classes[place] != classes[rows][of_pair]] = 0.0
        best = np.maximum.reduceat(value, starts)
        at = np.flatnonzero(value == best[of_pair])
        _, leading = np.unique(of_pair[at], return_index=True)
        overlaps[rows] = best
        found[rows] = np.where(best > 0, place[at[leading]], -1)
    return BestOverlaps(found, overlaps)
