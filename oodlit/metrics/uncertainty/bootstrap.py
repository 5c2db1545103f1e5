"""Stratified bootstrap of FPR and AUROC per OOD class, resampling ID images and the images of each class."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.acceptance import exact_tpr
from oodlit.metrics.numerics.ranking import smallest_count
from oodlit.metrics.uncertainty.intervals import check_confidence


@dataclass(frozen=True, eq=False)
class Replicates:
    """FPR and AUROC of every repetition, detector and class.

    Args:
        fpr: Shape (repetitions, detectors, classes).
        auroc: Shape (repetitions, detectors, classes).
        sizes: Number of images of each class, shape (classes,).
    """

    fpr: np.ndarray
    auroc: np.ndarray
    sizes: np.ndarray

    def mean(self, metric: str) -> Float[np.ndarray, "repetitions detectors"]:
        """Return the mean over classes of "fpr" or "auroc", with equal weights."""
        return np.asarray(getattr(self, metric).mean(axis=2))

    def pooled(self, metric: str) -> Float[np.ndarray, "repetitions detectors"]:
        """Return the value of all images together; for both metrics the mean weighted by class size."""
        # Not a matrix product: its rounding would depend on the number of detectors.
        return np.asarray((getattr(self, metric) * (self.sizes / self.sizes.sum())).sum(axis=2))


def stratified_bootstrap(
    id_scores: Float[np.ndarray, "detectors n"],
    ood_scores: Float[np.ndarray, "detectors m"],
    groups: Int[np.ndarray, " m"],
    *,
    tpr: ShareLike = 0.95,
    rule: str = "attained",
    repetitions: int = 1000,
    seed: int = 0,
) -> Replicates:
    """Draw ID images, and images of every OOD class, with replacement; compute FPR and AUROC of each repetition.

    The threshold is recomputed in every repetition, so its own uncertainty is included. All detectors and classes are
    evaluated together from positions in the sorted ID scores: a repetition costs one cumulative sum over the ID images
    and a few gathers over the OOD images.

    Args:
        id_scores: ID scores of every detector, without NaN.
        ood_scores: OOD scores of every detector, without NaN.
        groups: OOD class of every OOD image; all classes from 0 to the largest must occur.
        tpr: Fraction of ID scores to keep.
        rule: "attained" or "interpolated".
        repetitions: Number of repetitions, at least 1.
        seed: Seed of the random numbers.

    Returns:
        The replicates.

    Raises:
        InvalidArgumentError: A setting is not allowed, or a class or the ID set is empty.

    Example:
        >>> scores = np.arange(20.0)[None]
        >>> replicates = stratified_bootstrap(scores, scores - 5, np.zeros(20, dtype=int), repetitions=50)
        >>> replicates.fpr.shape
        (50, 1, 1)
    """
    exact = exact_tpr(tpr, rule)
    n = id_scores.shape[1]
    sizes = np.bincount(groups) if len(groups) else np.zeros(0, dtype=np.int64)
    if repetitions < 1 or n == 0 or len(sizes) == 0 or (sizes == 0).any():
        raise InvalidArgumentError(
            "stratified_bootstrap: expected at least one repetition, one ID image, and one image per class; got"
            f" repetitions={repetitions}, {n} ID images, and {len(sizes)} classes ({(sizes == 0).sum()} without images)"
        )
    generator = np.random.default_rng(seed)
    by_class = np.argsort(groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    # Resampling ignores the order of images, so positions after sorting can be drawn: one draw serves all.
    id_sorted = np.sort(id_scores, axis=1)
    ood = ood_scores[:, by_class]
    # 32 bits halve the memory traffic, which dominates the cost of a repetition.
    below, at_most = (
        np.stack([np.searchsorted(row, s, side=side) for row, s in zip(id_sorted, ood, strict=True)]).astype(np.int32)
        for side in ("left", "right")
    )
    ties = not np.array_equal(below, at_most)
    fpr = np.empty((repetitions, len(ood), len(sizes)))
    auroc = np.empty_like(fpr)
    cumulative = np.zeros(n + 1, dtype=np.int32)
    for repetition in range(repetitions):
        np.cumsum(np.bincount(generator.integers(0, n, n), minlength=n), out=cumulative[1:])
        draws = (generator.random(len(groups)) * np.repeat(sizes, sizes)).astype(np.int64)
        weights = np.bincount(np.repeat(starts, sizes) + draws, minlength=len(groups)).astype(np.int32)
        accepted = _accepted(id_sorted, ood, at_most, cumulative[1:], exact, rule)
        fpr[repetition] = np.add.reduceat(accepted * weights, starts, axis=1, dtype=np.int64) / sizes
        losses = cumulative.take(below)
        losses = losses + cumulative.take(at_most) if ties else 2 * losses
        auroc[repetition] = 1 - np.add.reduceat(losses * weights, starts, axis=1, dtype=np.int64) / (2 * n * sizes)
    return Replicates(fpr, auroc, sizes)


def percentile_interval(replicates: np.ndarray, *, confidence: ShareLike = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper percentile of the repetitions, along the first axis.

    Example:
        >>> low, high = percentile_interval(np.arange(101.0) / 100, confidence=0.9)
        >>> round(float(low), 2), round(float(high), 2)
        (0.05, 0.95)
    """
    confidence = check_confidence(confidence)
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def _accepted(
    id_sorted: np.ndarray, ood: np.ndarray, at_most: np.ndarray, cumulative: np.ndarray, tpr: Fraction, rule: str
) -> np.ndarray:
    """Return which OOD scores of every detector reach the threshold of one draw of ID images."""
    n = id_sorted.shape[1]
    # The j-th smallest drawn score (from 0) is the first one whose cumulative count exceeds j.
    if rule == "attained":
        index = np.searchsorted(cumulative, n - smallest_count(tpr, n), side="right")
        return np.asarray(at_most > index)  # score >= id_sorted[index], in integers
    position = (1 - tpr) * (n - 1)
    first = position.numerator // position.denominator
    weight = float(position - first)
    low = id_sorted[:, np.searchsorted(cumulative, first, side="right")].astype(np.float64)
    threshold = low
    if weight:
        high = id_sorted[:, np.searchsorted(cumulative, first + 1, side="right")].astype(np.float64)
        gap = np.zeros_like(low)
        np.subtract(high, low, out=gap, where=low != high)
        finite = np.isfinite(gap)
        threshold = np.where(finite, low + np.where(finite, gap, 0) * weight, np.where(np.isinf(low), low, high))
    return np.asarray(ood >= threshold[:, None])
