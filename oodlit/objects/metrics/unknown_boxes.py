"""Boxes called unknown: how many of them find an unknown object, and how many objects they find."""

import math

import numpy as np
from jaxtyping import Float, Int

from oodlit.base.checks import check_choice
from oodlit.metrics.entry import Value
from oodlit.objects.metrics.boxes import Boxes, of_open_set, split_entry
from oodlit.objects.metrics.open_set import NO_OBJECT, MatchedBoxes, OpenSet, Ratio, defined
from oodlit.objects.metrics.resampling import blocks, ratios
from oodlit.objects.metrics.settings import POINTS


def p_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the boxes called unknown that find an unknown object, each object once: TP / (TP + FP).

    NaN with a warning if there are no such boxes.
    """
    return defined("p_u", p_u_of(OpenSet(boxes, tau, iou)).value)


def r_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that are found: TP / N_U.

    NaN with a warning if there are no objects.
    """
    return defined("r_u", r_u_of(OpenSet(boxes, tau, iou)).value)


def ap_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5, points: str = "all") -> float:
    """Average precision of the boxes called unknown, ranked by the confidence of the detector.

    The precision at a recall is the largest at this recall or a higher one. Boxes of equal confidence enter together,
    so their order does not matter. Never above `r_u` with `points="all"`.

    Args:
        boxes: The boxes.
        tau: Boxes with a lower score are called unknown.
        iou: Smallest overlap with which a box hits an object.
        points: "all" (area under the whole curve) or "11" (mean at recall 0, 0.1, ..., 1).

    Returns:
        A share in [0, 1]. NaN with a warning if there are no objects.
    """
    return defined("ap_u", ap_u_of(OpenSet(boxes, tau, iou), points))


def p_u_of(found: OpenSet) -> Ratio:
    """TP / (TP + FP)."""
    image = found.image[found.ranked]
    return Ratio(image[found.is_true], image, "no box is called unknown")


def r_u_of(found: OpenSet) -> Ratio:
    """TP / N_U."""
    return Ratio(found.image[found.ranked[found.is_true]], found.object_image)


def ap_u_of(found: OpenSet, points: str = "all", *, each_box: bool = False) -> Value:
    """Area under the precision-recall curve; `each_box` makes a point of every box, even within ties."""
    check_choice("ap_u", "points", points, POINTS)
    if not found.boxes.n_objects:
        return Value(math.nan, reason=NO_OBJECT)
    ends = _ends(found, each_box=each_box)
    true, called = np.cumsum(found.is_true)[ends], ends + 1
    return Value(average_precision(true, called, found.boxes.n_objects, points=points))


def _ends(found: OpenSet, *, each_box: bool) -> Int[np.ndarray, " points"]:
    """Last ranked box of every point of the curve: boxes of equal confidence have no order among them."""
    confidence = found.boxes.confidence[found.ranked]
    last = np.append(confidence[1:] != confidence[:-1], True)[: len(confidence)]
    return np.arange(len(confidence)) if each_box else np.flatnonzero(last)


def average_precision(
    true: Int[np.ndarray, " points"], called: Int[np.ndarray, " points"], n_objects: int, *, points: str = "all"
) -> float:
    """Average precision from the points of a precision-recall curve.

    `all`: the area under the curve whose precision is the largest at this recall or a higher one. `11`: the mean of
    that precision at recall 0, 0.1, ..., 1, decided in integers; above the largest recall it is 0.

    Args:
        true: Number of true positives among the first boxes, rising.
        called: Number of these boxes, rising.
        n_objects: Number of objects, positive.
        points: "all" or "11".

    Example:
        >>> round(average_precision(np.array([1, 1, 2]), np.array([1, 2, 3]), 4), 4)
        0.4167
    """
    precision = np.maximum.accumulate((true / called)[::-1])[::-1]
    if points == "11":
        reached = [np.flatnonzero(true * 10 >= tenth * n_objects) for tenth in range(11)]
        return math.fsum(float(precision[rows[0]]) for rows in reached if len(rows)) / 11
    steps = np.diff(true, prepend=0)
    return math.fsum((steps * precision).tolist()) / n_objects


def ap_u_replicates(
    found: OpenSet, drawn: Int[np.ndarray, "repetitions images"], *, each_box: bool = False
) -> Float[np.ndarray, " repetitions"]:
    """AP_U in every repetition of the bootstrap."""
    image, ends = found.image[found.ranked], _ends(found, each_box=each_box)
    areas = np.zeros(len(drawn))
    for block in blocks(len(drawn), len(image)):
        weights = drawn[block][:, image]
        called = np.cumsum(weights, axis=1)[:, ends]
        true = np.cumsum(weights * found.is_true, axis=1)[:, ends]
        precision = np.maximum.accumulate(np.nan_to_num(ratios(true, called))[:, ::-1], axis=1)[:, ::-1]
        areas[block] = (np.diff(true, prepend=0, axis=1) * precision).sum(axis=1)
    return ratios(areas, drawn @ np.bincount(found.object_image, minlength=drawn.shape[1]))


def _ap_u(boxes: Boxes) -> Value:
    found, settings = boxes.open_set, boxes.settings
    value = ap_u_of(found, settings.points, each_box=settings.is_published)
    if settings.points == "11":
        return value
    return boxes.with_interval(value, lambda d: ap_u_replicates(found, d, each_box=settings.is_published))


def _p_u(boxes: Boxes) -> Value:
    if boxes.settings.is_published and not len(boxes.open_set.ranked):
        return Value(0.0)  # as FMIYC's program has it
    return of_open_set(p_u_of)(boxes)


ENTRIES = (
    split_entry(ap_u, "higher", _ap_u, 30, by_threshold=True),
    split_entry(p_u, "higher", _p_u, 31, by_threshold=True),
    split_entry(r_u, "higher", of_open_set(r_u_of), 32, by_threshold=True),
)
