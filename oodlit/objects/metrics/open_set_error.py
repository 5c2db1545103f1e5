"""Unknown objects that are taken for a known class, and those that no box hits."""

from oodlit.metrics.entry import Entry, Value
from oodlit.objects.metrics.boxes import of_open_set
from oodlit.objects.metrics.open_set import MatchedBoxes, OpenSet, Ratio, defined
from oodlit.roles import Role

__all__ = ["aose", "aose_boxes", "dismissed", "nose", "nose_boxes"]


def aose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> int:
    """Absolute open-set error: number of unknown objects that are hit by boxes called ID alone."""
    return int(OpenSet(boxes, tau, iou).misclassified.sum())


def aose_boxes(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> int:
    """Number of boxes called ID that hit an unknown object, duplicates included."""
    return int(OpenSet(boxes, tau, iou).is_error.sum())


def nose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """`aose` / N_U, in [0, 1]. NaN with a warning if there are no objects."""
    return defined("nose", nose_of(OpenSet(boxes, tau, iou)).value)


def nose_boxes(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """`aose_boxes` / N_U: duplicates count, so it can exceed 1 (FMIYC's printed nOSE)."""
    return defined("nose_boxes", nose_boxes_of(OpenSet(boxes, tau, iou)).value)


def dismissed(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that no box hits. NaN with a warning if there are no objects."""
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


ENTRIES = (
    Entry(
        "nose",
        "lower",
        (Role.OOD,),
        "share of the unknown objects that are hit by boxes called ID alone",
        nose,
        of_open_set(nose_of),
        order=40,
        by_threshold=True,
    ),
    Entry(
        "nose_boxes",
        "lower",
        (Role.OOD,),
        "boxes called ID on unknown objects, duplicates included, per unknown object (as published)",
        nose_boxes,
        of_open_set(nose_boxes_of),
        order=41,
        by_threshold=True,
    ),
    Entry(
        "dismissed",
        "lower",
        (Role.OOD,),
        "share of the unknown objects that no box hits",
        dismissed,
        of_open_set(dismissed_of),
        order=42,
    ),
    Entry(
        "aose",
        "lower",
        (Role.OOD,),
        "number of unknown objects that are hit by boxes called ID alone",
        aose,
        lambda boxes: Value(float(boxes.open_set.misclassified.sum())),
        order=43,
        by_threshold=True,
        is_count=True,
    ),
    Entry(
        "aose_boxes",
        "lower",
        (Role.OOD,),
        "number of boxes called ID on unknown objects, duplicates included",
        aose_boxes,
        lambda boxes: Value(float(boxes.open_set.is_error.sum())),
        order=44,
        by_threshold=True,
        is_count=True,
    ),
)
