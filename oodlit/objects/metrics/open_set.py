r"""Boxes of an OOD split, divided by a threshold into ID and unknown: the basis of all open-set metrics.

Every annotated object of an OOD split is unknown. A box is *called unknown* if its OOD score is below :math:`\tau`, and
it *hits* the object it overlaps most if the overlap is `iou` or more. These functions expect only boxes with a
confidence of at least t\*. With N_U objects:

- Boxes called unknown, sorted by falling confidence of the detector: the first box that hits an object is a true
  positive (TP). Every other one is a false positive (FP), whether it hits an object already found or none.
- An object is *misclassified* if boxes hit it but all of them are called ID. It is *dismissed* if no box hits it.

TP + misclassified + dismissed = N_U at every :math:`\tau`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from oodlit.base.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.metrics.entry import Value
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.metrics.numerics.undefined import undefined
from oodlit.objects.metrics.resampling import ratios

NO_OBJECT = "no object is annotated"


@dataclass(frozen=True, eq=False)
class MatchedBoxes:
    """Boxes of the images of a split, each with the unknown object it overlaps most.

    Args:
        confidence: The detector's own confidence, shape (boxes,).
        scores: OOD score, higher = more in-distribution, shape (boxes,).
        objects: Position of the object, -1 = none; shape (boxes,). See `best_overlaps`.
        overlaps: Intersection over union with it, shape (boxes,).
        n_objects: Number of annotated objects N_U.
        image: Position of the image of every box, shape (boxes,). None (default) = all are of one image.
        object_image: Position of the image of every object, shape (objects,). None (default) = the same.

    Raises:
        InvalidArgumentError: Shapes do not match, or an object does not exist.
        NonFiniteScoreError: A value is NaN.

    Example:
        >>> from oodlit.objects.metrics import dismissed, nose, p_u, r_u
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
    image: np.ndarray | None = None
    object_image: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        for name, kind in (("confidence", float), ("scores", float), ("objects", np.int64), ("overlaps", float)):
            value = np.asarray(getattr(self, name))
            if value.ndim != 1 or len(value) != len(np.asarray(self.confidence)):
                raise InvalidArgumentError(
                    f"MatchedBoxes: expected one value of {name} for each of {len(np.asarray(self.confidence))} boxes,"
                    f" got shape {value.shape}"
                )
            if np.isnan(value.astype(np.float64)).any():
                raise NonFiniteScoreError(f"MatchedBoxes: {name} contains NaN; boxes with NaN cannot be ranked")
            object.__setattr__(self, name, value.astype(kind))
        if len(self.objects) and not -1 <= self.objects.min() <= self.objects.max() < self.n_objects:
            raise InvalidArgumentError(
                f"MatchedBoxes: expected objects from -1 (no object) to {self.n_objects - 1}, got"
                f" {self.objects.min()} to {self.objects.max()}"
            )

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.confidence)


class Ratio(NamedTuple):
    """The ratio of two numbers of boxes or objects.

    Args:
        part: Image of every counted box or object.
        whole: Image of every box or object it is divided by.
        reason: Why the ratio is undefined if `whole` is empty.
    """

    part: Int[np.ndarray, " part"]
    whole: Int[np.ndarray, " whole"]
    reason: str = NO_OBJECT

    @property
    def value(self) -> Value:
        """The ratio, or NaN with the reason."""
        return Value(len(self.part) / len(self.whole)) if len(self.whole) else Value(math.nan, reason=self.reason)

    def replicates(self, drawn: Int[np.ndarray, "repetitions images"]) -> Float[np.ndarray, " repetitions"]:
        """The ratio in every repetition of the bootstrap."""
        part, whole = (drawn @ np.bincount(rows, minlength=drawn.shape[1]) for rows in (self.part, self.whole))
        return ratios(part, whole)


@dataclass(frozen=True, eq=False)
class OpenSet:
    r"""Boxes of a split, divided by a threshold; all metrics share its cached properties.

    Args:
        boxes: The boxes.
        tau: Boxes with a lower score are called unknown.
        iou: Smallest overlap with which a box hits an object, in (0, 1].
        strict: Whether the overlap must be larger than `iou`.

    Raises:
        InvalidArgumentError: `tau` is NaN, or `iou` is out of range.
    """

    boxes: MatchedBoxes
    tau: float
    iou: float = 0.5
    strict: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if math.isnan(self.tau):
            raise InvalidArgumentError("expected tau to be a number, got NaN; tau is undefined without ID boxes")
        exact_share(self.iou, "iou")

    @cached_property
    def image(self) -> Int[np.ndarray, " boxes"]:
        """Image of every box."""
        image = self.boxes.image
        return np.zeros(len(self.boxes), dtype=np.int64) if image is None else image

    @cached_property
    def object_image(self) -> Int[np.ndarray, " objects"]:
        """Image of every object."""
        image = self.boxes.object_image
        return np.zeros(self.boxes.n_objects, dtype=np.int64) if image is None else image

    @cached_property
    def is_unknown(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes are called unknown."""
        return np.asarray(self.boxes.scores < self.tau)

    @cached_property
    def hits(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes hit an object."""
        overlaps = self.boxes.overlaps
        enough = overlaps > self.iou if self.strict else overlaps >= self.iou
        return np.asarray(enough & (self.boxes.objects >= 0))

    @cached_property
    def ranked(self) -> Int[np.ndarray, " unknown"]:
        """Positions of the boxes called unknown, highest confidence first."""
        found = np.flatnonzero(self.is_unknown)
        return np.asarray(found[np.argsort(-self.boxes.confidence[found], kind="stable")])

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
        """Which objects are hit only by boxes called ID."""
        return np.asarray(self._hit_by(self.hits) & ~self.found)

    @cached_property
    def dismissed(self) -> Bool[np.ndarray, " objects"]:
        """Which objects no box hits."""
        return ~self._hit_by(self.hits)

    @cached_property
    def is_error(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes called ID hit an unknown object, duplicates included."""
        return np.asarray(self.hits & ~self.is_unknown)

    def _hit_by(self, rows: Bool[np.ndarray, " boxes"]) -> Bool[np.ndarray, " objects"]:
        hit = np.zeros(self.boxes.n_objects, dtype=bool)
        hit[self.boxes.objects[rows]] = True
        return hit


def defined(metric: str, value: Value) -> float:
    """The number, or NaN with a warning that states the reason."""
    return undefined(metric, value.reason) if math.isnan(value.value) else value.value
