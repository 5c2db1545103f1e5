"""Images without boxes."""

import math

import numpy as np
from jaxtyping import Int

from oodlit.metrics.entry import Entry, Value
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.objects.metrics.boxes import Boxes
from oodlit.objects.metrics.open_set import defined
from oodlit.roles import Role

__all__ = ["no_boxes"]


def no_boxes(image: Int[np.ndarray, " boxes"], n_images: int) -> float:
    """Share of the images without a box. NaN with a warning if there are no images.

    Args:
        image: Position of the image of every box.
        n_images: Number of images.

    Example:
        >>> no_boxes(np.array([0, 0, 3]), 4)
        0.5
    """
    value = len(_empty(image, n_images)) / n_images if n_images else math.nan
    return defined("no_boxes", Value(value, reason=_NO_IMAGE))


_NO_IMAGE = "there is no image"


def _empty(image: Int[np.ndarray, " boxes"], n_images: int) -> Int[np.ndarray, " empty"]:
    return np.setdiff1d(np.arange(n_images), image)


def _no_boxes(boxes: Boxes) -> Value:
    n = len(boxes.own.images)
    if not n:
        return Value(math.nan, reason=_NO_IMAGE)
    empty = len(_empty(boxes.own.image, n))
    return Value(empty / n, wilson_interval(empty, n, confidence=boxes.settings.confidence))


ENTRIES = (
    Entry(
        "no_boxes",
        "lower",
        (Role.ID, Role.OOD),
        "share of the images without a box of confidence t* or more",
        no_boxes,
        _no_boxes,
        order=3,
        of_classifier=True,
    ),
)
