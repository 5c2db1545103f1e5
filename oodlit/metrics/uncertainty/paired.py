"""Paired comparison over images: the contribution of every image to a value, and which values are below the best."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import norm

IdScores = Float[np.ndarray, "detectors n"]
OodScores = Float[np.ndarray, "detectors m"]
Weights = Float[np.ndarray, " m"]
Classes = Int[np.ndarray, " m"]
Values = Float[np.ndarray, " detectors"]


@dataclass(frozen=True, eq=False)
class ImageParts:
    """FPR or AUROC of several detectors as sums of contributions of the images.

    A value is the weighted sum of `of_ood`. Its variation with the ID images is the mean of `of_id`, up to a constant.

    Args:
        of_id: Shape (detectors, n).
        of_ood: Shape (detectors, m).
        weights: Weight of every OOD image, equal within a class, with a sum of 1. Shape (m,).
        classes: Class of every OOD image, 0 to the largest, all of which occur. Shape (m,).
    """

    of_id: IdScores
    of_ood: OodScores
    weights: Weights
    classes: Classes

    @property
    def values(self) -> Values:
        """The values."""
        return np.asarray((self.of_ood * self.weights).sum(axis=1))


def auroc_parts(id_scores: IdScores, ood_scores: OodScores, weights: Weights, classes: Classes) -> ImageParts:
    """Split the AUROC: the fraction of ID images above every OOD image, and of OOD images below every ID image.

    Ties count one half. With these parts, `below_the_best` is DeLong's test for correlated curves, for a weighted mean
    over classes.

    Example:
        >>> inside, ood = np.array([[3.0, 1.0]]), np.array([[2.0, 1.0]])
        >>> parts = auroc_parts(inside, ood, np.full(2, 0.5), np.zeros(2, dtype=int))
        >>> parts.of_ood.tolist(), parts.of_id.tolist(), parts.values.tolist()
        ([[0.5, 0.75]], [[1.0, 0.25]], [0.625])

    References:
        DeLong, DeLong, Clarke-Pearson: Comparing the Areas under Two or More Correlated Receiver Operating
        Characteristic Curves. Biometrics 1988.
    """
    of_id = np.empty(id_scores.shape, dtype=np.float64)
    of_ood = np.empty(ood_scores.shape, dtype=np.float64)
    for row in range(len(id_scores)):
        inside, ood = id_scores[row], ood_scores[row]
        id_order, ood_order = np.argsort(inside, kind="stable"), np.argsort(ood, kind="stable")
        # Both sorted: searching in ascending order also reads memory in order.
        inside, ood = inside[id_order], ood[ood_order]
        of_ood[row, ood_order] = 1 - _mid_shares(inside, np.arange(len(inside) + 1) / max(len(inside), 1), ood)
        of_id[row, id_order] = _mid_shares(ood, np.concatenate([[0.0], np.cumsum(weights[ood_order])]), inside)
    return ImageParts(of_id, of_ood, weights, classes)


def fpr_parts(
    id_scores: IdScores, ood_scores: OodScores, weights: Weights, classes: Classes, thresholds: Values
) -> ImageParts:
    """Split the FPR: whether an OOD image is accepted, and how an ID image affects it through the threshold.

    An accepted ID image raises the threshold: the FPR decreases along the ROC curve, by the slope of the curve for
    every further fraction of ID images. The slope is that of the secant over the range of thresholds for other ID
    images: two standard errors of the TPR on both sides.

    Example:
        >>> inside, ood = np.arange(100.0)[None], np.arange(-50.0, 50.0)[None]
        >>> parts = fpr_parts(inside, ood, np.full(100, 0.01), np.zeros(100, dtype=int), np.array([5.0]))
        >>> parts.values.round(3).tolist(), parts.of_id[0, 4:6].round(3).tolist()
        ([0.45], [-0.0, -1.0])
    """
    of_ood = (ood_scores >= thresholds[:, None]).astype(np.float64)
    of_id = -(id_scores >= thresholds[:, None]).astype(np.float64)
    for row, (inside, ood) in enumerate(zip(id_scores, ood_scores, strict=True)):
        of_id[row] *= _slope(np.sort(inside), ood, weights, thresholds[row])
    return ImageParts(of_id, of_ood, weights, classes)


def below_the_best(parts: ImageParts, best: int, *, is_lower_better: bool) -> Values:
    """Compute for each detector the probability (one-sided p-value) of being this much worse than the best by chance.

    The difference is divided by its standard error over the same images: the variance of the differences within each
    class and among the ID images. The square of the difference is added to the variance of a single image, so that a
    few agreeing images do not give certainty.

    Args:
        parts: Contributions of the images.
        best: Row of the detector to compare with.
        is_lower_better: Whether a smaller value is better.

    Returns:
        A p-value per detector, at most 1; 1 without a difference, and for the best itself.

    Example:
        >>> inside = np.array([[6.0, 7.0, 8.0, 9.0], [6.0, 2.0, 8.0, 4.0]])
        >>> ood = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 2.0, 7.0, 1.0]])
        >>> parts = auroc_parts(inside, ood, np.full(4, 0.25), np.zeros(4, dtype=int))
        >>> below_the_best(parts, 0, is_lower_better=False).round(3).tolist()
        [1.0, 0.148]
    """
    n = parts.of_id.shape[1]
    sizes = np.bincount(parts.classes)
    of_class = np.zeros(len(sizes))
    of_class[parts.classes] = parts.weights
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    order = np.argsort(parts.classes, kind="stable")
    found = np.ones(len(parts.of_ood))
    for row in range(len(found)):
        own = parts.of_ood[row] - parts.of_ood[best]
        loss = float((own * parts.weights).sum()) * (1 if is_lower_better else -1)
        if row == best or not loss > 0:
            continue
        sums = np.add.reduceat(own[order], starts)
        squares = np.add.reduceat(np.square(own[order]), starts)
        spread = np.where(sizes > 1, (squares - sums**2 / sizes) / np.maximum(sizes - 1, 1), squares).clip(min=0)
        variance = float((of_class**2 * sizes * spread).sum())
        variance += float(np.var(parts.of_id[row] - parts.of_id[best], ddof=1 if n > 1 else 0)) / n
        variance += loss**2 * (float((of_class**2 * sizes).sum()) + 1 / n)
        found[row] = norm.sf(loss / np.sqrt(variance))
    return found


def in_group_of_best(p_values: Values, *, confidence: float) -> Bool[np.ndarray, " detectors"]:
    """Return which detectors belong to the group of the best, after Bonferroni's correction for all others.

    The group contains the truly best detector, whichever it is, with probability `confidence` at least: it is left out
    only if the best one of these images seems better, which happens for each of the others with a probability of at
    most (1 - confidence) / (detectors - 1).

    Example:
        >>> in_group_of_best(np.array([1.0, 0.03, 0.02]), confidence=0.95).tolist()
        [True, True, False]

    References:
        Gupta: On Some Multiple Decision (Selection and Ranking) Rules. Technometrics 1965.
    """
    return np.asarray(p_values * max(len(p_values) - 1, 1) > 1 - confidence)


def _mid_shares(ascending: np.ndarray, cumulative: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each value the fraction of sorted scores below it, plus half the fraction equal to it."""
    below, at_most = (np.searchsorted(ascending, values, side=side) for side in ("left", "right"))
    return np.asarray((cumulative[below] + cumulative[at_most]) / 2)


def _slope(ascending: np.ndarray, ood: np.ndarray, weights: np.ndarray, threshold: float) -> float:
    """Return the change of the FPR per change of the TPR, around the threshold."""
    n = len(ascending)
    kept = n - int(np.searchsorted(ascending, threshold, side="left"))
    half = int(np.ceil(2 * np.sqrt(kept * (n - kept) / n)))
    ends = [float(ascending[n - min(max(count, 1), n)]) for count in (kept - half, kept + half)]
    tpr = [1 - np.searchsorted(ascending, end, side="left") / n for end in ends]
    fpr = [float(weights[ood >= end].sum()) for end in ends]
    return (fpr[1] - fpr[0]) / (tpr[1] - tpr[0]) if tpr[1] > tpr[0] else 0.0
