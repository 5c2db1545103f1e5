"""Intervals of means over OOD classes for small classes or few ID images, where a bootstrap covers too little."""

import numpy as np
from jaxtyping import Float, Int

from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.metrics.uncertainty.intervals import check_confidence, normal_quantile, wilson_with
from oodlit.metrics.uncertainty.paired import auroc_parts

IdScores = Float[np.ndarray, " n"]
OodScores = Float[np.ndarray, " m"]
Classes = Int[np.ndarray, " m"]
PerClass = Float[np.ndarray, " classes"]
Sizes = Int[np.ndarray, " classes"]
POOLED_IMAGES = 4
"""Weight of the pooled variance in the variance of each class, as a number of images."""
DIRECTIONS = 13
"""Number of ways in which the deviation of an FPR is divided between ID and OOD images."""
LEAST_RANK = 0.02
"""Smallest expected number of ID images below a threshold that is below all ID scores."""


def mean_auroc_interval(
    id_scores: IdScores, ood_scores: OodScores, classes: Classes, *, confidence: ShareLike = 0.95
) -> tuple[float, float]:
    r"""Interval for the mean AUROC over classes: Wilson's formula with an effective number of images.

    As in `auroc_interval`, DeLong's variance V of the mean A determines the number of images :math:`n_e = A (1 - A) /
    V`, at most three times the smaller of the number of ID images and :math:`K^2 / \sum 1 / n_k`. The variance of each
    class of :math:`n_k` images is averaged with the pooled variance of all K classes, which counts as 4 images.

    Args:
        id_scores: ID scores, higher = more in-distribution.
        ood_scores: OOD scores.
        classes: Class of each OOD image, from 0; every class has at least two images.
        confidence: Nominal coverage, in (0, 1).

    Returns:
        Lower and upper end.

    Example:
        >>> inside, ood = np.arange(30.0), np.array([-3.0, 4.5, 2.5, 0.5])
        >>> [round(end, 3) for end in mean_auroc_interval(inside, ood, np.array([0, 0, 1, 1]))]
        [0.656, 0.988]
    """
    n, sizes = len(id_scores), np.bincount(classes)
    weights = 1 / (len(sizes) * sizes)
    parts = auroc_parts(id_scores[None], ood_scores[None], weights[classes], classes)
    area, above = float(parts.values[0]), parts.of_ood[0]
    means = np.bincount(classes, weights=above) / sizes
    squares = np.bincount(classes, weights=np.square(above - means[classes]))
    pooled = squares.sum() / (sizes - 1).sum()
    spread = (squares + POOLED_IMAGES * pooled) / (sizes - 1 + POOLED_IMAGES)
    variance = float((spread / sizes).sum() / len(sizes) ** 2) + (float(parts.of_id[0].var(ddof=1)) / n if n > 1 else 0)
    cap = 3 * min(n, len(sizes) ** 2 / float((1 / sizes).sum()))
    total = min(area * (1 - area) / variance, cap) if variance > 0 else cap
    return wilson_with(normal_quantile(check_confidence(confidence)), min(max(area, 0.0), 1.0), total)


def mean_fpr_interval(
    id_scores: IdScores, ood_scores: OodScores, classes: Classes, *, tpr: ShareLike = 0.95, confidence: ShareLike = 0.95
) -> tuple[float, float]:
    """Interval for the mean FPR over classes, with the uncertainty of the threshold.

    A deviation of z standard errors is divided between the threshold (z sin t) and the shares of the classes (z cos t).
    The threshold moves by that many binomial standard errors of the TPR; below the smallest ID score it follows the
    quantiles of a normal distribution with the spread of the ID scores. The Wilson intervals of the classes are
    combined by `mover`. The ends are the extremes over t.

    Args:
        id_scores: ID scores, higher = more in-distribution.
        ood_scores: OOD scores.
        classes: Class of each OOD image, from 0; every class has an image.
        tpr: Fraction of ID scores to keep.
        confidence: Nominal coverage, in (0, 1).

    Returns:
        Lower and upper end.

    Example:
        >>> inside, ood = np.arange(30.0), np.array([-3.0, 4.5, 2.5, 0.5])
        >>> [round(end, 3) for end in mean_fpr_interval(inside, ood, np.array([0, 0, 1, 1]))]
        [0.058, 1.0]
    """
    z, share = normal_quantile(check_confidence(confidence)), float(exact_share(tpr))
    ascending, sizes = np.sort(id_scores), np.bincount(classes)
    equal = np.full(len(sizes), 1 / len(sizes))
    error = (share * (1 - share) / len(ascending)) ** 0.5
    ends = []
    for angle in np.linspace(-np.pi / 2, np.pi / 2, DIRECTIONS):
        threshold = _threshold(ascending, share + z * float(np.sin(angle)) * error)
        accepted = np.bincount(classes, weights=ood_scores >= threshold) / sizes
        ends.append(mean_share_interval(accepted, sizes, equal, z * float(np.cos(angle))))
    return min(low for low, _ in ends), max(high for _, high in ends)


def mean_share_interval(shares: PerClass, sizes: Sizes, weights: PerClass, z: float) -> tuple[float, float]:
    """Combine Wilson's intervals of shares, z standard errors wide, into an interval of their weighted mean.

    Example:
        >>> low, high = mean_share_interval(np.array([0.0, 0.5]), np.array([5, 10]), np.array([0.5, 0.5]), 1.96)
        >>> round(low, 3), round(high, 3)
        (0.118, 0.504)
    """
    center = shares + z * z / (2 * sizes)
    half = z * np.sqrt(shares * (1 - shares) / sizes + z * z / (4 * sizes * sizes))
    low, high = ((center + sign * half) / (1 + z * z / sizes) for sign in (-1, 1))
    return mover(shares, np.minimum(low, shares), np.maximum(high, shares), weights)


def mover(values: PerClass, lows: PerClass, highs: PerClass, weights: PerClass) -> tuple[float, float]:
    """Combine intervals of independent values into an interval of their weighted mean, within [0, 1].

    References:
        Zou and Donner: Construction of Confidence Limits about Effect Measures. Statistics in Medicine 2008.
    """
    mean = float((weights * values).sum())
    below = float(np.sqrt(np.square(weights * (values - lows)).sum()))
    above = float(np.sqrt(np.square(weights * (highs - values)).sum()))
    return max(0.0, mean - below), min(1.0, mean + above)


def _threshold(ascending: np.ndarray, tpr: float) -> float:
    """Return the score that a fraction of the ID scores reaches, also if it is below all of them."""
    n, position = len(ascending), (1 - tpr) * len(ascending)
    if n == 1 or not np.isfinite(ascending).all():
        return float(ascending[min(max(int(position), 0), n - 1)])
    if position >= 0:
        return float(np.interp(position, np.arange(n), ascending))
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(ascending.std(ddof=1))
    steps = normal_quantile(1 - 2 * max(0.5 + position / 2, LEAST_RANK) / n) - normal_quantile(1 - 1 / n)
    return float(ascending[0]) - (spread * steps if np.isfinite(spread) else 0.0)
