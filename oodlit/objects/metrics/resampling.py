r"""Intervals by drawing images anew: boxes of one image are not independent of each other.

An image that is drawn twice brings all of its boxes and objects twice. tau and t\* are taken as given, except for the
FPR, whose threshold is found anew in every repetition.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.objects.metrics.open_set import OpenSet

__all__ = ["interval", "open_set_replicates", "ranking_replicates", "resample"]

_NUMBERS = 1 << 22
"""Numbers that are held together, in about 32 MB."""


def resample(n_images: int, *, repetitions: int, seed: int) -> Int[np.ndarray, "repetitions images"]:
    """How often every image is drawn in every repetition, as many draws as there are images.

    Example:
        >>> resample(5, repetitions=3, seed=0).sum(axis=1).tolist()
        [5, 5, 5]
    """
    if not n_images:
        return np.zeros((repetitions, 0), dtype=np.int64)
    drawn: np.ndarray = np.random.default_rng(seed).multinomial(n_images, np.full(n_images, 1 / n_images), repetitions)
    return drawn


def interval(
    replicates: Float[np.ndarray, " repetitions"], *, confidence: float, value: float, n_images: int
) -> tuple[float, float]:
    """Percentile interval of the repetitions in which the metric is defined.

    Where all of them agree on 0 or 1 they would claim a certainty that so many images do not give: it is Wilson's
    interval for a share among the images then.

    Example:
        >>> [round(end, 2) for end in interval(np.zeros(100), confidence=0.95, value=0.0, n_images=20)]
        [0.0, 0.16]
    """
    known = replicates[~np.isnan(replicates)]
    if not len(known) or math.isnan(value):
        return math.nan, math.nan
    if known.min() == known.max() and value in (0.0, 1.0):
        return wilson_interval(round(value * n_images), n_images, confidence=confidence)
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def open_set_replicates(
    open_set: OpenSet,
    image: Int[np.ndarray, " boxes"],
    object_image: Int[np.ndarray, " objects"],
    drawn: Int[np.ndarray, "repetitions images"],
    *,
    each_box: bool = False,
) -> dict[str, Float[np.ndarray, " repetitions"]]:
    """Every open-set metric in every repetition; NaN where it is not defined.

    Args:
        open_set: The boxes and objects of a split.
        image: Number of the image of every box.
        object_image: Number of the image of every object.
        drawn: How often every image is drawn.
        each_box: See `OpenSet.ap_u`.
    """
    n_images = drawn.shape[1]
    ranked = open_set.ranked
    sums = {
        "objects": object_image,
        "true": image[ranked[open_set.is_true]],
        "called": image[ranked],
        "misclassified": object_image[open_set.misclassified],
        "errors": image[open_set.is_error],
        "dismissed": object_image[open_set.dismissed],
    }
    counted = {name: drawn @ np.bincount(rows, minlength=n_images) for name, rows in sums.items()}
    values = {
        "p_u": _ratio(counted["true"], counted["called"]),
        "r_u": _ratio(counted["true"], counted["objects"]),
        "nose": _ratio(counted["misclassified"], counted["objects"]),
        "nose_boxes": _ratio(counted["errors"], counted["objects"]),
        "dismissed": _ratio(counted["dismissed"], counted["objects"]),
    }
    confidence = open_set.boxes.confidence[ranked]
    last = np.append(confidence[1:] != confidence[:-1], True)[: len(ranked)]
    ends = np.arange(len(ranked)) if each_box else np.flatnonzero(last)
    areas = np.zeros(len(drawn))
    for block in _blocks(len(drawn), len(ranked)):
        weights = drawn[block][:, image[ranked]]
        called = np.cumsum(weights, axis=1)[:, ends]
        true = np.cumsum(weights * open_set.is_true, axis=1)[:, ends]
        precision = np.maximum.accumulate(np.nan_to_num(_ratio(true, called))[:, ::-1], axis=1)[:, ::-1]
        areas[block] = (np.diff(true, prepend=0, axis=1) * precision).sum(axis=1)
    values["ap_u"] = _ratio(areas, counted["objects"])
    return values


@dataclass(frozen=True, eq=False)
class RankedBoxes:
    """Scores of boxes with their images.

    Args:
        scores: Shape (boxes,).
        image: Number of the image of every box, shape (boxes,).
        drawn: How often every image is drawn, shape (repetitions, images).
    """

    scores: Float[np.ndarray, " boxes"]
    image: Int[np.ndarray, " boxes"]
    drawn: Int[np.ndarray, "repetitions images"]

    def ascending(self) -> "RankedBoxes":
        """The same by rising score."""
        order = np.argsort(self.scores, kind="stable")
        return RankedBoxes(self.scores[order], self.image[order], self.drawn)


def ranking_replicates(
    inside: RankedBoxes, outside: RankedBoxes, *, tpr: ShareLike = 0.95
) -> dict[str, Float[np.ndarray, " repetitions"]]:
    """AUROC and FPR of boxes of ID images against boxes of a split, in every repetition."""
    inside = inside.ascending()
    below, at_most = (np.searchsorted(inside.scores, outside.scores, side=side) for side in ("left", "right"))
    share = exact_share(tpr)
    repetitions = len(inside.drawn)
    auroc, fpr = np.full((2, repetitions), np.nan)
    if not (len(inside.scores) and len(outside.scores)):
        return {"auroc": auroc, "fpr": fpr}
    for block in _blocks(repetitions, len(inside.scores) + len(outside.scores)):
        # Counts of ID boxes fit 32 bits, which halves the memory that is walked; products and sums do not.
        cumulated = np.cumsum(inside.drawn[block].astype(np.int32)[:, inside.image], axis=1, dtype=np.int32)
        total = cumulated[:, -1].astype(np.int64)
        before = np.pad(cumulated, ((0, 0), (1, 0)))
        outer = outside.drawn[block].astype(np.int32)[:, outside.image]
        pairs = total * outer.sum(axis=1, dtype=np.int64)
        losses = np.einsum("ij,ij->i", outer, before[:, below], dtype=np.int64)
        losses += np.einsum("ij,ij->i", outer, before[:, at_most], dtype=np.int64)
        auroc[block] = 1 - _ratio(losses, 2 * pairs)
        # The threshold is the largest score from which on k boxes are, k = ceil(tpr * total), in integers.
        needed = -(-share.numerator * total // share.denominator)
        rejected = (cumulated <= (total - needed)[:, None]).sum(axis=1)  # boxes below it
        accepted = at_most[None, :] > np.minimum(rejected, len(inside.scores) - 1)[:, None]
        n_accepted = np.einsum("ij,ij->i", outer, accepted, dtype=np.int64)
        fpr[block] = _ratio(n_accepted, outer.sum(axis=1, dtype=np.int64) * (total > 0))
    return {"auroc": auroc, "fpr": fpr}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) != 0)
    return ratio


def _blocks(repetitions: int, width: int) -> Iterator[slice]:
    step = max(1, _NUMBERS // max(width, 1))
    return (slice(start, start + step) for start in range(0, repetitions, step))
