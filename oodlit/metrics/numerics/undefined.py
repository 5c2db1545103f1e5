"""Undefined values of metrics."""

import math

from oodlit.base.text.warn import warn


class UndefinedMetricWarning(UserWarning):
    """A metric is NaN because it is undefined for this input; the message states why."""


def undefined(metric: str, reason: str) -> float:
    """Return NaN with one `UndefinedMetricWarning` that names the metric and the reason.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     value = undefined("auroc", "there is no OOD score")
        >>> value, str(caught[0].message)
        (nan, 'auroc is undefined (NaN): there is no OOD score')
    """
    warn(f"{metric} is undefined (NaN): {reason}", UndefinedMetricWarning)
    return math.nan
