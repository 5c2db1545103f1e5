"""Wilderness impact: share of the boxes of known classes that lie on unknown objects."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.entry import Value
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.objects.metrics.boxes import Boxes, split_entry
from oodlit.objects.metrics.open_set import defined


@dataclass(frozen=True, eq=False)
class ClassifiedBoxes:
    """Boxes called ID, of ID images and of images with unknown objects.

    Args:
        confidence: Confidence of the object detector, shape (boxes,).
        classes: Predicted ID class, shape (boxes,).
        known: Position of the ID object of this class that a box hits, -1 = none; shape (boxes,).
        on_unknown: Whether a box hits an unknown object, shape (boxes,).
        n_objects: Number of ID objects of every class, shape (classes,).

    Raises:
        InvalidArgumentError: Shapes do not match, or a class does not exist.
    """

    confidence: Float[np.ndarray, " boxes"]
    classes: Int[np.ndarray, " boxes"]
    known: Int[np.ndarray, " boxes"]
    on_unknown: Bool[np.ndarray, " boxes"]
    n_objects: Int[np.ndarray, " classes"]

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        lengths = {name: len(getattr(self, name)) for name in ("confidence", "classes", "known", "on_unknown")}
        if len(set(lengths.values())) > 1:
            raise InvalidArgumentError(f"ClassifiedBoxes: expected fields of equal length, got {lengths}")
        if len(self.classes) and not 0 <= self.classes.min() <= self.classes.max() < len(self.n_objects):
            raise InvalidArgumentError(
                f"ClassifiedBoxes: expected classes from 0 to {len(self.n_objects) - 1},"
                f" got {self.classes.min()} to {self.classes.max()}"
            )


def wilderness_impact(boxes: ClassifiedBoxes, *, recall: ShareLike = 0.8) -> float:
    r"""Share of the boxes of ID classes that lie on unknown objects.

    This is the mean over ID classes of the boxes on unknown objects / mean over ID classes of all boxes, TP + FP.
    Boxes of a class are counted by falling confidence until they reach `recall` of its ID objects; boxes of equal
    confidence enter together. The first box that hits an ID object of its class is a true positive. Classes without
    objects do not count.

    Args:
        boxes: Boxes called ID, above t\*.
        recall: Recall of a class, in (0, 1].

    Returns:
        The ratio. NaN with an `UndefinedMetricWarning` if a class does not reach the recall, or no class has objects.

    Example:
        >>> one = np.zeros(3, dtype=np.int64)
        >>> boxes = ClassifiedBoxes(np.array([0.9, 0.8, 0.7]), one, np.array([0, -1, 1]),
        ...     np.array([False, True, False]), np.array([2]))
        >>> round(wilderness_impact(boxes), 4), wilderness_impact(boxes, recall=0.5)
        (0.3333, 0.0)

    References:
        Dhamija, Günther, Ventura, Boult: The Overlooked Elephant of Object Detection: Open Set. WACV 2020.
    """
    return defined("wilderness_impact", wilderness_of(boxes, recall=recall))


def wilderness_of(boxes: ClassifiedBoxes, *, recall: ShareLike = 0.8) -> Value:
    """Compute the wilderness impact, or the reason why it is undefined."""
    share = exact_share(recall, "recall")
    present = np.flatnonzero(boxes.n_objects)
    if not len(present):
        return Value(math.nan, reason="there is no ID object")
    on_unknown, called, missed = 0, 0, []
    for label in present.tolist():
        rows = np.flatnonzero(boxes.classes == label)
        rows = rows[np.argsort(-boxes.confidence[rows], kind="stable")]
        hit = np.flatnonzero(boxes.known[rows] >= 0)
        _, first = np.unique(boxes.known[rows[hit]], return_index=True)
        found = np.zeros(len(rows), dtype=np.int64)
        found[hit[first]] = 1
        enough = np.flatnonzero(np.cumsum(found) * share.denominator >= share.numerator * int(boxes.n_objects[label]))
        if not len(enough):
            missed.append(label)
            continue
        kept = rows[boxes.confidence[rows] >= boxes.confidence[rows[enough[0]]]]
        on_unknown += int(boxes.on_unknown[kept].sum())
        called += len(kept)
    if missed:
        what = f"{len(missed)} of {len(present)} classes (first: the class with index {missed[0]})"
        return Value(math.nan, reason=f"recall {float(share):g} is not reached for {what}")
    return Value(on_unknown / called)


def _of_split(boxes: Boxes) -> Value:
    """Boxes called ID, of the ID images and of the split together."""
    sides = (boxes.known, boxes.own)
    if not (boxes.known.is_annotated and boxes.class_names):
        return Value(math.nan, reason="the ID set has no annotations, or the class names are missing")
    if not len(boxes.own.objects):
        return Value(math.nan, reason="no unknown object is annotated")
    if any((side.boxes["prediction"] < 0).any() for side in sides):
        return Value(math.nan, reason="some boxes have no predicted class")
    called = [side.counted & (side.scores(boxes.detector) >= boxes.tau) for side in sides]
    best, classes = boxes.known.best_of_class, boxes.known.objects.classes
    assert classes is not None  # tables of objects have classes
    known = np.where(boxes.known.reaches(best), best.objects, -1)
    none = np.zeros(int(called[0].sum()), dtype=bool)
    chosen = ClassifiedBoxes(
        np.concatenate([side.confidence[rows] for side, rows in zip(sides, called, strict=True)]),
        np.concatenate([side.boxes["prediction"].to_numpy()[rows] for side, rows in zip(sides, called, strict=True)]),
        np.concatenate([known[called[0]], np.full(int(called[1].sum()), -1)]),
        np.concatenate([none, boxes.own.hits[called[1]]]),
        np.bincount(classes, minlength=len(boxes.class_names)),
    )
    return wilderness_of(chosen, recall=boxes.settings.recall)


WI = split_entry(wilderness_impact, "lower", _of_split, 50, by_threshold=True)
ENTRIES = (replace(WI, name="wi", text=f"wilderness impact: {WI.text}, at recall {{recall}}"),)
