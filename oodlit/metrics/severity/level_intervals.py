"""Intervals of values at levels of severity, with classes as the sampling unit."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor

from oodlit.base.fractions import ShareLike
from oodlit.metrics.uncertainty.intervals import check_confidence, wilson_with

Interval = tuple[float, float]
ClassSizes = Int[Tensor, " classes"]
ClassValues = Float[Tensor, " classes"]


def level_intervals(
    values: ClassValues,
    sizes: ClassSizes,
    order: ClassSizes,
    starts: Sequence[int],
    width: int,
    *,
    confidence: ShareLike = 0.95,
) -> tuple[list[Interval], Interval]:
    r"""Compute intervals of the levels and of their mean: their variation over other, equally hard classes.

    A level is the mean v of its classes' values, weighted by their images. Its variance is that of a ratio,
    :math:`\frac{m}{m - 1} \sum_c n_c^2 (a_c - v)^2 / (\sum_c n_c)^2`. A class in several levels contributes once to the
    variance of their mean, with all its weights. :math:`n_e = v (1 - v) / V`, at most three times the images, is the
    number with which a fraction would be as uncertain; the interval is Wilson's with that number, and Student's
    quantile for m - 1 degrees of freedom, since few classes tell little about their spread. Differences in difficulty
    between classes are taken as given.

    Args:
        values: AUROC or FPR of every class, shape (K,).
        sizes: Test images of every class, shape (K,).
        order: Classes from the easiest to the hardest, shape (K,).
        starts: Position in `order` at which each level begins.
        width: Classes of a level.
        confidence: Nominal coverage, in (0, 1).

    Returns:
        One interval per level, and that of the mean over levels; NaN for a single class.

    Raises:
        InvalidArgumentError: The confidence is outside its range.

    Example:
        >>> values, sizes = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64), torch.full((4,), 50)
        >>> levels, mean = level_intervals(values, sizes, torch.arange(4), [0, 2], width=2)
        >>> [round(end, 2) for end in (*levels[1], *mean)]
        [0.16, 0.95, 0.58, 0.87]
    """
    level = check_confidence(confidence)
    a, n = values.double()[order], sizes.double()[order]
    influence = torch.zeros(len(order), dtype=torch.float64)
    is_covered = torch.zeros(len(order), dtype=torch.bool)
    intervals, means = [], []
    if width < 2:
        return [(math.nan, math.nan)] * len(starts), (math.nan, math.nan)
    for start in starts:
        window = slice(start, start + width)
        images = float(n[window].sum())
        mean = float((a[window] * n[window]).sum()) / images
        change = n[window] * (a[window] - mean) / images
        influence[window] += change / len(starts)
        is_covered[window] = True
        means.append(mean)
        intervals.append(_interval(mean, change, images, width, width - 1, level))
    # Each level has its own mean, which uses one degree of freedom.
    freedom = max(width - 1, int(is_covered.sum()) - len(set(starts)))
    mean = math.fsum(means) / len(means)
    return intervals, _interval(mean, influence, float(n[is_covered].sum()), width, freedom, level)


def _interval(
    value: float, influence: ClassValues, images: float, width: int, freedom: int, confidence: float
) -> Interval:
    variance = float(influence.square().sum()) * width / (width - 1)
    most = 3.0 * images
    number = min(value * (1 - value) / variance, most) if variance > 0 else most
    return wilson_with(float(student.isf((1 - confidence) / 2, freedom)), value, number)
