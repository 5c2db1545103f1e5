r"""Open-set metrics: are unknown objects found, dismissed, or taken for something known?

Every annotated object of an OOD split is unknown. A box is *called unknown* if its OOD score is below :math:`\tau`, and
it *hits* the object that it overlaps most, if that is by `iou` or more. Only boxes from the confidence t\* on are given
to these functions. With N_U objects:

- boxes called unknown, by falling confidence of the detector: the first that hits an object is a true positive (TP),
  every other one is a false positive (FP), whether it hits an object that is found already or none;
- an object is *misclassified* if boxes hit it, but all of them are called ID, and *dismissed* if no box hits it.

TP + misclassified + dismissed = N_U at every :math:`\tau`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from oodlit.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.metrics.entry import Value
from oodlit.metrics.numerics.undefined import undefined

__all__ = [
    "MatchedBoxes",
    "OpenSet",
    "aose",
    "ap_u",
    "dismissed",
    "nose",
    "nose_boxes",
    "p_u",
    "r_u",
]

POINTS = ("all", "11")


@dataclass(frozen=True, eq=False)
class MatchedBoxes:
    """Boxes from t* on of the images of a split, with the unknown object that each overlaps most.

    Args:
        confidence: The detector's own confidence, shape (boxes,).
        scores: OOD score, higher = more in-distribution, shape (boxes,).
        objects: Number of the object, -1 = none; shape (boxes,). See `best_overlaps`.
        overlaps: Intersection over union with it, shape (boxes,).
        n_objects: Number of annotated objects N_U.

    Raises:
        InvalidArgumentError: Shapes do not fit, or there is no such object.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> confidence, scores = np.array([0.9, 0.8, 0.7]), np.array([1.0, 2.0, 9.0])
        >>> boxes = MatchedBoxes(confidence, scores, np.array([0, 0, 1]), np.array([0.8, 0.6, 0.5]), n_objects=4)
        >>> p_u(boxes, tau=5.0), r_u(boxes, tau=5.0), nose(boxes, tau=5.0), dismissed(boxes, tau=5.0)
        (0.5, 0.25, 0.25, 0.5)
    """

    confidence: np.ndarray
    scores: np.ndarray
    objects: np.ndarray
    overlaps: np.ndarray
    n_objects: int

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        for name, kind in (("confidence", float), ("scores", float), ("objects", np.int64), ("overlaps", float)):
            value = np.asarray(getattr(self, name))
            if value.ndim != 1 or len(value) != len(np.asarray(self.confidence)):
                raise InvalidArgumentError(
                    f"MatchedBoxes: {name} has shape {value.shape}; one value per box, of which there are"
                    f" {len(np.asarray(self.confidence))}, is needed"
                )
            if np.isnan(value.astype(np.float64)).any():
                raise NonFiniteScoreError(f"MatchedBoxes: {name} holds NaN; boxes with NaN have no rank")
            object.__setattr__(self, name, value.astype(kind))
        if len(self.objects) and not -1 <= self.objects.min() <= self.objects.max() < self.n_objects:
            raise InvalidArgumentError(
                f"MatchedBoxes: objects holds {self.objects.min()}..{self.objects.max()}; numbers below"
                f" n_objects={self.n_objects}, or -1, are needed"
            )

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.confidence)


@dataclass(frozen=True, eq=False)
class OpenSet:
    r"""What a threshold makes of the boxes of a split; everything that the metrics need, each formed once.

    Args:
        boxes: The boxes.
        tau: Boxes with a lower score are called unknown.
        iou: Overlap from which on a box hits an object, in (0, 1].
        strict: Whether the overlap must be larger than `iou`.

    Raises:
        InvalidArgumentError: `tau` is NaN, or `iou` outside its range.
    """

    boxes: MatchedBoxes
    tau: float
    iou: float = 0.5
    strict: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if math.isnan(self.tau):
            raise InvalidArgumentError("tau is NaN: there is no threshold; it comes from the scores of ID boxes")
        if not 0 < self.iou <= 1:
            raise InvalidArgumentError(f"iou={self.iou!r}: an overlap in (0, 1] is needed, such as 0.5")

    @cached_property
    def is_unknown(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes are called unknown."""
        unknown: np.ndarray = self.boxes.scores < self.tau
        return unknown

    @cached_property
    def hits(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes hit an object."""
        overlaps = self.boxes.overlaps
        enough = overlaps > self.iou if self.strict else overlaps >= self.iou
        hits: np.ndarray = enough & (self.boxes.objects >= 0)
        return hits

    @cached_property
    def ranked(self) -> Int[np.ndarray, " unknown"]:
        """Positions of the boxes called unknown, by falling confidence."""
        found = np.flatnonzero(self.is_unknown)
        ranked: np.ndarray = found[np.argsort(-self.boxes.confidence[found], kind="stable")]
        return ranked

    @cached_property
    def is_true(self) -> Bool[np.ndarray, " unknown"]:
        """Which of the ranked boxes are true positives."""
        rows = np.flatnonzero(self.hits[self.ranked])
        _, first = np.unique(self.boxes.objects[self.ranked[rows]], return_index=True)
        true = np.zeros(len(self.ranked), dtype=bool)
        true[rows[first]] = True
        return true

    @cached_property
    def found(self) -> Bool[np.ndarray, " objects"]:
        """Which objects are hit by a box called unknown."""
        return self._hit_by(self.hits & self.is_unknown)

    @cached_property
    def misclassified(self) -> Bool[np.ndarray, " objects"]:
        """Which objects are hit by boxes called ID alone."""
        misclassified: np.ndarray = self._hit_by(self.hits) & ~self.found
        return misclassified

    @cached_property
    def dismissed(self) -> Bool[np.ndarray, " objects"]:
        """Which objects no box hits."""
        return ~self._hit_by(self.hits)

    @property
    def aose(self) -> int:
        """Number of unknown objects called ID."""
        return int(self.misclassified.sum())

    @cached_property
    def is_error(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes called ID hit an unknown object, duplicates included."""
        errors: np.ndarray = self.hits & ~self.is_unknown
        return errors

    def p_u(self) -> Value:
        """TP / (TP + FP)."""
        if not len(self.ranked):
            return Value(math.nan, reason="no box is called unknown")
        return Value(int(self.is_true.sum()) / len(self.ranked))

    def r_u(self) -> Value:
        """TP / N_U."""
        return self._share(int(self.is_true.sum()))

    def nose(self) -> Value:
        """Misclassified objects / N_U."""
        return self._share(self.aose)

    def nose_boxes(self) -> Value:
        """Boxes called ID on unknown objects / N_U."""
        return self._share(int(self.is_error.sum()))

    def dismissed_share(self) -> Value:
        """Dismissed objects / N_U."""
        return self._share(int(self.dismissed.sum()))

    def ap_u(self, points: str = "all", *, each_box: bool = False) -> Value:
        """Area under the precision-recall curve; `each_box` makes a point of every box, also within ties."""
        if points not in POINTS:
            raise InvalidArgumentError(f"points={points!r}: 'all' or '11' is needed")
        if not self.boxes.n_objects:
            return Value(math.nan, reason=_NO_OBJECT)
        true = np.cumsum(self.is_true)
        called = np.arange(1, len(true) + 1)
        if not each_box:  # boxes of one confidence have no order: the curve has a point where it changes
            confidence = self.boxes.confidence[self.ranked]
            last = np.append(confidence[1:] != confidence[:-1], True)[: len(true)]
            true, called = true[last], called[last]
        return Value(average_precision(true, called, self.boxes.n_objects, points=points))

    def _hit_by(self, rows: Bool[np.ndarray, " boxes"]) -> Bool[np.ndarray, " objects"]:
        hit = np.zeros(self.boxes.n_objects, dtype=bool)
        hit[self.boxes.objects[rows]] = True
        return hit

    def _share(self, count: int) -> Value:
        if not self.boxes.n_objects:
            return Value(math.nan, reason=_NO_OBJECT)
        return Value(count / self.boxes.n_objects)


_NO_OBJECT = "no object is annotated"


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


def p_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Precision of the boxes called unknown: TP / (TP + FP). NaN with a warning if there is none."""
    return _told("p_u", OpenSet(boxes, tau, iou).p_u())


def r_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that are found: TP / N_U. NaN with a warning if there is no object."""
    return _told("r_u", OpenSet(boxes, tau, iou).r_u())


def ap_u(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5, points: str = "all") -> float:
    """Average precision of the boxes called unknown, ranked by the confidence of the detector.

    The precision at a recall is the largest at this recall or a higher one. Boxes of equal confidence enter together,
    so their order does not matter. Never above `r_u` for `points="all"`.

    Args:
        boxes: The boxes.
        tau: Boxes with a lower score are called unknown.
        iou: Overlap from which on a box hits an object.
        points: "all" (area under the whole curve) or "11" (mean at recall 0, 0.1, ..., 1).

    Returns:
        A share in [0, 1]. NaN with a warning if there is no object.
    """
    return _told("ap_u", OpenSet(boxes, tau, iou).ap_u(points))


def aose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> int:
    """Absolute open-set error: number of unknown objects that are hit by boxes called ID alone."""
    return OpenSet(boxes, tau, iou).aose


def nose(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """`aose` / N_U, in [0, 1]. NaN with a warning if there is no object."""
    return _told("nose", OpenSet(boxes, tau, iou).nose())


def nose_boxes(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Boxes called ID that hit an unknown object / N_U: duplicates count, it may exceed 1 (FMIYC's printed nOSE)."""
    return _told("nose_boxes", OpenSet(boxes, tau, iou).nose_boxes())


def dismissed(boxes: MatchedBoxes, *, tau: float, iou: float = 0.5) -> float:
    """Share of the unknown objects that no box hits. NaN with a warning if there is no object."""
    return _told("dismissed", OpenSet(boxes, tau, iou).dismissed_share())


def _told(metric: str, value: Value) -> float:
    return undefined(metric, value.reason) if math.isnan(value.value) else value.value
