"""Percentiles of any number of values."""

from functools import partial

import numpy as np
from torch import Tensor

from oodlit.base.fractions import exact_number
from oodlit.detectors.statistics import Statistics, TrainSample
from oodlit.errors import InvalidArgumentError

SAMPLE = 2**16
"""Where there are many values: how many are sorted first, and how many are looked at at a time."""


def percentile(values: Tensor, percent: float) -> float:
    """The value below which `percent` of 100 values lie, linear between neighbours (rule of `numpy.percentile`).

    Exact for any number of values: the position is kept in float64, and selection among the values near the wanted one
    replaces sorting. Memory: a small part of the values.

    Args:
        values: Any shape, without NaN, at least one value.
        percent: 0 <= percent <= 100.

    Example:
        >>> import torch
        >>> round(percentile(torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 100]), 90.0), 9)
        17.2
    """
    exact = exact_number(check_percentile("percentile", percent, small=True))
    assert exact is not None  # checked
    flat = values.detach().cpu().numpy().reshape(-1)
    if flat.size == 0:
        raise InvalidArgumentError("percentile: there are no values")
    position = exact / 100 * (flat.size - 1)
    below = int(position)
    skipped, near = _near(flat, below)
    parted = np.partition(near, below - skipped)
    # The next larger value is the smallest of what lies above: cheaper than to select twice.
    low = float(parted[below - skipped])
    high = float(parted[below - skipped + 1 :].min(initial=np.inf)) if position > below else low
    return low + (high - low) * float(position - below)


def feature_percentile(statistics: Statistics, percent: float) -> float:
    """A percentile of all features of the sampled training images, pooled; computed once per fit."""
    features = statistics[TrainSample].column("features", ordered=False)
    return statistics.memo(("feature_percentile", percent), partial(percentile, features, percent))


def _near(flat: np.ndarray, rank: int) -> tuple[int, np.ndarray]:
    """The values around the one of a rank, its successor among them, and how many smaller ones are left out."""
    if flat.size < 16 * SAMPLE:
        return 0, flat
    # The wanted value lies within a few standard errors of its rank among evenly spaced values.
    sample = np.sort(flat[:: flat.size // SAMPLE])
    middle, margin = rank / flat.size * sample.size, 5 * sample.size**0.5
    low = sample[int(middle - margin)] if middle > margin else -np.inf
    high = sample[int(middle + margin)] if middle + margin < sample.size else np.inf
    skipped, parts = 0, []
    for start in range(0, flat.size, SAMPLE):
        part = flat[start : start + SAMPLE]
        skipped += int(np.count_nonzero(part < low))
        parts.append(part[(part >= low) & (part <= high)])
    near = np.concatenate(parts)
    # Where values follow a pattern, evenly spaced ones may mislead: then all of them are taken.
    return (skipped, near) if skipped <= rank < skipped + near.size - 1 else (0, flat)


def check_percentile(owner: str, percent: object, *, small: bool = False) -> float:
    """The percentile that was meant, 7 for 100 * 0.07; an error if it is not in [0, 100], or looks like a fraction.

    Args:
        owner: Named in the error.
        percent: In percent.
        small: Whether values between 0 and 1 are meant as they are; elsewhere 0.9 is nearly always meant as 90.

    Raises:
        InvalidArgumentError: It is out of range.
    """
    exact = None if isinstance(percent, bool | str) else exact_number(percent)
    if exact is None or not 0 <= exact <= 100:
        raise InvalidArgumentError(f"{owner}: {percent!r} is no percentile; a number in [0, 100] is needed")
    if 0 < exact < 1 and not small:
        raise InvalidArgumentError(f"{owner}: {percent} looks like a fraction; percentiles are in percent: 90, not 0.9")
    return percent if isinstance(percent, int) else float(exact)
