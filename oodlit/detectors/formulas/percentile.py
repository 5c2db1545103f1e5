"""Exact percentiles of any number of values."""

from functools import partial

import numpy as np
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import exact_number
from oodlit.detectors.statistics import Statistics, TrainSample

SAMPLE = 2**16
"""For many values: size of the sample that is sorted first, and number of values processed at a time."""


def percentile(values: Tensor, percent: float) -> float:
    """Return the value below which `percent` % of the values are, linear between neighbors as in `numpy.percentile`.

    Exact for any number of values: the position is computed in float64, and only values near it are selected. Uses
    little extra memory.

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
        raise InvalidArgumentError("percentile: expected at least one value, got none")
    position = exact / 100 * (flat.size - 1)
    below = int(position)
    skipped, near = _near(flat, below)
    parted = np.partition(near, below - skipped)
    # The next larger value is the minimum of those above, which is cheaper than a second selection.
    low = float(parted[below - skipped])
    high = float(parted[below - skipped + 1 :].min(initial=np.inf)) if position > below else low
    return low + (high - low) * float(position - below)


def feature_percentile(statistics: Statistics, percent: float) -> float:
    """Return a percentile of all features of the sampled training images, computed once per fit."""
    features = statistics[TrainSample].column("features", ordered=False)
    return statistics.memo(("feature_percentile", percent), partial(percentile, features, percent))


def _near(flat: np.ndarray, rank: int) -> tuple[int, np.ndarray]:
    """Return how many small values were left out, and the values around a rank and the next rank."""
    if flat.size < 16 * SAMPLE:
        return 0, flat
    # The value is within a few standard errors of its rank among evenly spaced values.
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
    # Values with a pattern can mislead evenly spaced samples: use all of them.
    return (skipped, near) if skipped <= rank < skipped + near.size - 1 else (0, flat)


def check_percentile(owner: str, percent: object, *, small: bool = False) -> float:
    """Return the percentile that was meant (7 for 100 * 0.07); refuse values outside [0, 100] and fractions.

    Args:
        owner: Named in the error.
        percent: In percent.
        small: Whether to accept values between 0 and 1; otherwise 0.9 is refused, since 90 was probably meant.

    Raises:
        InvalidArgumentError: The value is out of range.
    """
    exact = None if isinstance(percent, bool | str) else exact_number(percent)
    if exact is None or not 0 <= exact <= 100:
        raise InvalidArgumentError(f"{owner}: expected a percentile in [0, 100], got {percent!r}")
    if 0 < exact < 1 and not small:
        raise InvalidArgumentError(
            f"{owner}: {percent} looks like a fraction; percentiles are in percent, such as 90 instead of 0.9"
        )
    return percent if isinstance(percent, int) else float(exact)
