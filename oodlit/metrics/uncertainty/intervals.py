"""Intervals for fractions and AUROC: how far a value can be from the truth."""

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import ArrayConvertible, Ranking, ScoreLike, as_flags, as_scores, exact_share, rank


def wilson_interval(successes: int, total: int, *, confidence: ShareLike = 0.95) -> tuple[float, float]:
    r"""Wilson score interval for a fraction k/n.

    :math:`\left(\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}\right) / \left(1
    + \frac{z^2}{n}\right)`. Unlike the normal interval it is never empty at 0 or 1 and never leaves [0, 1]. For the FPR
    of a class the threshold is taken as given, which is accurate for many ID images (NINCO: 50,000).

    Args:
        successes: Count k, 0 <= k <= n.
        total: Number of trials n.
        confidence: Nominal coverage, in (0, 1).

    Returns:
        Lower and upper end. (NaN, NaN) for n = 0.

    Raises:
        InvalidArgumentError: A number is outside its range.

    Example:
        >>> [round(end, 3) for end in wilson_interval(3, 31)]
        [0.033, 0.249]

    References:
        Wilson: Probable Inference, the Law of Succession, and Statistical Inference. JASA 1927.
    """
    confidence = check_confidence(confidence)
    try:
        successes, total = index(successes), index(total)
    except TypeError:
        raise InvalidArgumentError(f"wilson_interval: expected two integers, got {successes!r} and {total!r}") from None
    if not 0 <= successes <= total:
        raise InvalidArgumentError(f"wilson_interval: expected 0 <= successes <= total, got {successes} of {total}")
    return (float("nan"), float("nan")) if total == 0 else _wilson(successes / total, total, confidence)


def auroc_interval(id_scores: ScoreLike, ood_scores: ScoreLike, *, confidence: ShareLike = 0.95) -> tuple[float, float]:
    r"""Interval for the AUROC of one class: Wilson's formula with an effective number of images.

    DeLong's variance V of the AUROC A determines the number of images :math:`n_e = A (1 - A) / V` with which a fraction
    would be as uncertain; the interval is Wilson's for the fraction A of :math:`n_e` images. :math:`n_e` is at most
    three times the size of the smaller group, since V is itself uncertain and is 0 for perfect separation. Unlike a
    bootstrap, it keeps its coverage for small classes and values near 1 (see `docs/uncertainty.md`).

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        confidence: Nominal coverage, in (0, 1).

    Returns:
        Lower and upper end. (NaN, NaN) if one of the groups is empty.

    Raises:
        InvalidArgumentError: The confidence is outside its range.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> [round(end, 3) for end in auroc_interval([3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.5])]
        [0.499, 0.992]

    References:
        DeLong, DeLong, Clarke-Pearson: Comparing the Areas under Two or More Correlated Receiver Operating
        Characteristic Curves. Biometrics 1988.
    """
    confidence = check_confidence(confidence)
    return auroc_interval_of(rank(id_scores, ood_scores), confidence)


def auroc_interval_of(ranking: Ranking, confidence: float) -> tuple[float, float]:
    """Compute the interval from a ranking."""
    n, m = ranking.n_id, ranking.n_ood
    if ranking.missing():
        return float("nan"), float("nan")
    above = 1 - (ranking.id_below + ranking.id_at_most).double() / (2 * n)  # of each OOD image: fraction of ID above it
    below = 1 - (ranking.ood_at_or_above_id + ranking.ood_above_id).double() / (2 * m)  # of each ID image
    return effective_interval(float(above.mean()), [above, below], confidence, cap=3.0 * min(n, m))


def effective_interval(share: float, parts: Sequence[Tensor], confidence: float, *, cap: float) -> tuple[float, float]:
    """Compute Wilson's interval for a fraction with an effective number of images.

    Args:
        share: The fraction, in [0, 1].
        parts: For each independent group of images, what each image contributes: the variance of the fraction is the
            sum over groups of the variance of their means.
        confidence: Nominal coverage.
        cap: Largest effective number, which is also used if the variance is zero.
    """
    variance = sum(float(part.var()) / len(part) if len(part) > 1 else 0.0 for part in parts)
    return _wilson(share, min(share * (1 - share) / variance, cap) if variance > 0 else cap, confidence)


def augrc_interval(
    scores: ScoreLike, is_correct: ArrayConvertible | Sequence[bool], *, confidence: ShareLike = 0.95
) -> tuple[float, float]:
    r"""Interval for the AUGRC: Wilson's formula with an effective number of images.

    Twice the AUGRC is the mean of :math:`\phi(i, j)` over all pairs of images: :math:`\phi` is 1 if both are wrong, 2
    if i is correct, j is wrong and :math:`s_j > s_i` (1 if they tie), else 0. With V the variance of that mean
    :math:`\theta`, from the means of the single images, :math:`n_e = \theta (1 - \theta) / V`, at most three times the
    number of images.

    Args:
        scores: Higher = accepted earlier, shape (n,).
        is_correct: Whether the prediction is correct, boolean, shape (n,).
        confidence: Nominal coverage, in (0, 1).

    Returns:
        Lower and upper end. (NaN, NaN) without images.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or the confidence is outside its range.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> [round(end, 3) for end in augrc_interval([0.9, 0.8, 0.7, 0.6], [True, False, True, True])]
        [0.021, 0.411]
    """
    confidence = check_confidence(confidence)
    values = as_scores(scores)
    correct = as_flags(is_correct, "is_correct", like=values)
    return augrc_interval_of(rank(values[correct], values[~correct]), confidence)


def augrc_interval_of(ranking: Ranking, confidence: float) -> tuple[float, float]:
    """Compute the interval from a ranking of wrongly classified images among correctly classified ones."""
    wrong, n = ranking.n_ood, ranking.n_id + ranking.n_ood
    if n == 0:
        return float("nan"), float("nan")
    share = (int((ranking.id_below + ranking.id_at_most).sum()) + wrong**2) / n**2
    of_wrong = (ranking.id_below + ranking.id_at_most).double() + 2 * wrong
    of_correct = (ranking.ood_at_or_above_id + ranking.ood_above_id).double()
    variance = float((torch.cat([of_wrong, of_correct]) / n).var()) / n if n > 1 else 0.0
    total = min(share * (1 - share) / variance, 3.0 * n) if variance > 0 else float(n)
    low, high = _wilson(share, total, confidence)
    return low / 2, high / 2


def _wilson(share: float, total: float | int, confidence: float) -> tuple[float, float]:
    return wilson_with(normal_quantile(confidence), share, total)


def wilson_with(z: float, share: float, total: float | int) -> tuple[float, float]:
    """Compute Wilson's interval with a given quantile instead of the normal one."""
    total = max(total, 1)
    center = share + z * z / (2 * total)
    half = z * float(np.sqrt(share * (1 - share) / total + z * z / (4 * total * total)))
    scale = 1 + z * z / total
    # At 0 and 1 the closed end is exact; rounding must not move it.
    low = 0.0 if share == 0 else max((center - half) / scale, 0.0)
    return low, (1.0 if share == 1 else min((center + half) / scale, 1.0))


@lru_cache(maxsize=32)
def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal number lies within -z and z with a probability of `confidence`."""
    # From the upper tail, since (1 + confidence) / 2 would round to 1. Cached, since scipy is slow and tables call this
    # often.
    return float(norm.isf((1 - confidence) / 2))


def check_confidence(confidence: Any) -> float:
    """Return the confidence that was meant, checked to be in (0, 1)."""
    return float(exact_share(confidence, "confidence", below_one=True))
