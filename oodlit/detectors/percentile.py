"""Percentiles of any number of values."""

import numpy as np
from torch import Tensor

from oodlit.errors import InvalidArgumentError

__all__ = ["check_percentile", "percentile"]


def percentile(values: Tensor, percent: float) -> float:
    """The value below which `percent` of 100 values lie, linear between neighbours (rule of `numpy.percentile`).

    Exact for any number of values: the position is kept in float64 and selection replaces sorting. Memory: one copy.

    Args:
        values: Any shape, without NaN, at least one value.
        percent: 0 <= percent <= 100.

    Example:
        >>> import torch
        >>> round(percentile(torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 100]), 90.0), 9)
        17.2
    """
    check_percentile("percentile", percent, small=True)
    flat = values.detach().cpu().numpy().reshape(-1)
    if flat.size == 0:
        raise InvalidArgumentError("percentile: there are no values")
    position = percent / 100 * (flat.size - 1)
    below = int(position)
    parted = np.partition(flat, below)
    # The next larger value is the smallest of what lies above: cheaper than to select twice.
    low = float(parted[below])
    high = float(parted[below + 1 :].min(initial=np.inf)) if position > below else low
    return low + (high - low) * (position - below)


def check_percentile(owner: str, percent: float, *, small: bool = False) -> None:
    """Raise if `percent` is not in [0, 100], or looks like a fraction.

    Args:
        owner: Named in the error.
        percent: In percent.
        small: Whether values between 0 and 1 are meant as they are; elsewhere 0.9 is nearly always meant as 90.

    Raises:
        InvalidArgumentError: It is out of range.
    """
    if not 0 <= percent <= 100:
        raise InvalidArgumentError(f"{owner}: {percent} is no percentile; a number in [0, 100] is needed")
    if 0 < percent < 1 and not small:
        raise InvalidArgumentError(f"{owner}: {percent} looks like a fraction; percentiles are in percent: 90, not 0.9")
