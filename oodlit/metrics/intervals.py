"""Intervals for shares: how far a count can be from the truth."""

import numpy as np
from scipy.stats import norm

from oodlit.errors import InvalidArgumentError

__all__ = ["wilson_interval"]


def wilson_interval(successes: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    r"""Wilson score interval for a share k/n.

    :math:`\left(\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}\right)
    / \left(1 + \frac{z^2}{n}\right)`. Unlike the normal interval it is never empty at 0 or 1 and never leaves [0, 1].
    For the FPR of a class the threshold is taken as given: it holds for many ID images (NINCO: 50 000).

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
    check_confidence(confidence)
    if not 0 <= successes <= total:
        raise InvalidArgumentError(f"wilson_interval: {successes} of {total}; 0 <= successes <= total is needed")
    if total == 0:
        return float("nan"), float("nan")
    z = float(norm.ppf((1 + confidence) / 2))
    share = successes / total
    centre = share + z * z / (2 * total)
    half = z * float(np.sqrt(share * (1 - share) / total + z * z / (4 * total * total)))
    scale = 1 + z * z / total
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == total else (centre + half) / scale
    return low, high


def check_confidence(confidence: float) -> None:
    """Raise unless the confidence is in (0, 1)."""
    if not 0 < confidence < 1:
        raise InvalidArgumentError(f"confidence={confidence!r}: a share in (0, 1) is needed, such as 0.95")
