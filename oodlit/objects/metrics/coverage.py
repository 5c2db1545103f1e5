"""Images without boxes."""

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from oodlit.base.roles import Role
from oodlit.metrics.entry import Value
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.objects.metrics.boxes import Boxes, split_entry
from oodlit.objects.metrics.open_set import defined


def no_boxes(image: Int[np.ndarray, " boxes"], n_images: int) -> float:
    """Share of the images without a box above t*.

    NaN with a warning if there are no images.

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


NO_BOXES = split_entry(no_boxes, "lower", _no_boxes, 3, of_classifier=True)
ENTRIES = (replace(NO_BOXES, of=(Role.ID, Role.OOD)),)
