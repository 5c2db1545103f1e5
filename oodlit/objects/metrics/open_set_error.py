"""Unknown objects that are taken for a known class, and those that no box hits."""

from oodlit.metrics.entry import Value
from oodlit.objects.metrics.boxes import Boxes, of_open_set, split_entry
from oodlit.objects.metrics.open_set import MatchedBoxes, OpenSet, Ratio, defined


def aose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> int:
    """Absolute open-set error: number of unknown objects that are hit only by boxes called ID."""
    return int(OpenSet(boxes, tau, iou).misclassified.sum())


def aose_boxes(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> int:
    """Number of boxes called ID that hit an unknown object, duplicates included."""
    return int(OpenSet(boxes, tau, iou).is_error.sum())


def nose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that are hit only by boxes called ID: aose / N_U.

    NaN with a warning if there are no objects.
    """
    return defined("nose", nose_of(OpenSet(boxes, tau, iou)).value)


def nose_boxes(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Boxes called ID on unknown objects, duplicates included, per unknown object (as published): aose_boxes / N_U.

    Can exceed 1. NaN with a warning if there are no objects.
    """
    return defined("nose_boxes", nose_boxes_of(OpenSet(boxes, tau, iou)).value)


def dismissed(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that no box hits.

    NaN with a warning if there are no objects.
    """
    return defined("dismissed", dismissed_of(OpenSet(boxes, tau, iou)).value)


def nose_of(found: OpenSet) -> Ratio:
    """Misclassified objects / N_U."""
    return Ratio(found.object_image[found.misclassified], found.object_image)


def nose_boxes_of(found: OpenSet) -> Ratio:
    """Boxes called ID on unknown objects / N_U."""
    return Ratio(found.image[found.is_error], found.object_image)


def dismissed_of(found: OpenSet) -> Ratio:
    """Dismissed objects / N_U."""
    return Ratio(found.object_image[found.dismissed], found.object_image)


def _aose(boxes: Boxes) -> Value:
    return Value(float(boxes.open_set.misclassified.sum()))


def _aose_boxes(boxes: Boxes) -> Value:
    return Value(float(boxes.open_set.is_error.sum()))


ENTRIES = (
    split_entry(nose, "lower", of_open_set(nose_of), 40, by_threshold=True),
    split_entry(nose_boxes, "lower", of_open_set(nose_boxes_of), 41, by_threshold=True),
    split_entry(dismissed, "lower", of_open_set(dismissed_of), 42),
    split_entry(aose, "lower", _aose, 43, by_threshold=True, is_count=True),
    split_entry(aose_boxes, "lower", _aose_boxes, 44, by_threshold=True, is_count=True),
)
