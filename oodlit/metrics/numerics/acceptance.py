"""The smallest score at which an image is accepted."""

import math
from fractions import Fraction

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import ScoreLike, SortedScores, as_sorted, exact_share, smallest_count
from oodlit.metrics.numerics.undefined import undefined

RULES = ("attained", "interpolated")


def acceptance_threshold(id_scores: ScoreLike, *, tpr: ShareLike = 0.95, rule: str = "attained") -> float:
    r"""Threshold t that accepts at least a fraction `tpr` of the ID scores; an image is accepted if score >= t.

    `attained`: :math:`t = \max\{t \in \mathrm{ID} : |\{s \in \mathrm{ID}: s \ge t\}| \ge k\}` with k the smallest
    integer >= tpr * n, decided in integers: the k-th largest ID score. It is an observed score, tied scores are
    accepted or rejected together, and the fraction kept is never below `tpr`.

    `interpolated`: the (1 - tpr) quantile with linear interpolation between neighboring scores, as in the code behind
    NINCO's tables. It can keep less than `tpr` of a small sample. Between a finite and an infinite score it is that
    infinity.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated".

    Returns:
        The threshold. NaN with an `UndefinedMetricWarning` without ID scores.

    Raises:
        InvalidArgumentError: `tpr` or `rule` is not allowed.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> acceptance_threshold(range(1, 11))
        1.0
        >>> round(acceptance_threshold(range(1, 11), rule="interpolated"), 4)
        1.45

    References:
        Bitterwolf, Müller, Hein: In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation. ICML 2023.
    """
    exact = exact_tpr(tpr, rule)
    scores = as_sorted(id_scores, "id_scores")
    if len(scores) == 0:
        return undefined("acceptance_threshold", "there is no ID score")
    if rule == "attained":
        return float(scores.values[len(scores) - smallest_count(tpr, len(scores))])
    return _interpolated(scores, exact)


def exact_tpr(tpr: ShareLike, rule: str) -> Fraction:
    """Return `tpr` as the number that was meant; raise unless it is in (0, 1] and `rule` is one of RULES."""
    if rule not in RULES:
        raise InvalidArgumentError(f"expected rule to be {' or '.join(map(repr, RULES))}, got {rule!r}")
    return exact_share(tpr)


def _interpolated(scores: SortedScores, tpr: Fraction) -> float:
    position = (1 - tpr) * (len(scores) - 1)
    index = math.floor(position)
    low = float(scores.values[index])
    high = float(scores.values[min(index + 1, len(scores) - 1)])
    weight = float(position - index)
    if weight == 0 or low == high:
        return low
    if math.isinf(low) or math.isinf(high):
        return low if math.isinf(low) else high
    # Interpolate from the nearer end, so that rounding cannot leave the interval.
    return low + (high - low) * weight if weight < 0.5 else high - (high - low) * (1 - weight)
