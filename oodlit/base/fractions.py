"""Read fractions and percentages as the exact numbers that were meant (0.95 as 95/100), so that counts are exact."""

from decimal import Decimal
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

ShareLike: TypeAlias = float | int | Fraction | Decimal | str | np.generic | np.ndarray | Tensor
"""Types accepted as a fraction; arrays and tensors must contain a single number."""

LARGEST_DENOMINATOR = 10**6
"""Largest count in a fraction such as 47,499/50,001 that is recognized even after some arithmetic."""

LARGEST_QUOTIENT = 2 * 10**7
"""Largest count in a fraction that is recognized after a plain division: ImageNet-21k has 14 million images."""


def exact_number(value: object) -> Fraction | None:
    """Return the intended decimal value as an exact fraction; None if `value` is not a finite number.

    0.95 is 95/100 rather than the nearest binary number, and so are 1 - 0.05, 0.1 * 9.5, `np.float32(0.95)`, "0.95" and
    `Decimal("0.95")`. A floating-point number with few digits is read as written. Otherwise it comes from arithmetic:
    it is the shortest decimal, or the ratio of counts, within the rounding of a few operations; in single precision if
    it is such a number, like `float(1 - np.float32(0.05))`. Fractions, decimals and text are used as they are.

    Example:
        >>> [str(exact_number(x)) for x in (0.95, 1 - 0.05, 1 - 0.9, 5 / 6, np.float32(0.07), "0.95", 0.9500001)]
        ['19/20', '19/20', '1/10', '5/6', '7/100', '19/20', '9500001/10000000']
    """
    value = _plain(value)
    if isinstance(value, Rational):
        return Fraction(value)
    if isinstance(value, Decimal | str):
        try:
            return Fraction(value)
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
    return _meant(value) if isinstance(value, Real) and isfinite(value) else None


def _plain(value: Any) -> object:
    """Return the only number of a tensor or an array without dimensions, in its own precision."""
    if getattr(value, "shape", None) == () and not isinstance(value, np.generic):
        try:
            return value.numpy(force=True)[()] if hasattr(value, "numpy") else value[()]
        except TypeError:  # numpy has no bfloat16
            return value.item()
    return value


def _meant(value: Any) -> Fraction:
    number = float(value)
    if not isinstance(value, np.floating) and len(_digits(str(number))) > 12 and number == float(np.float32(number)):
        single = _meant_in_single_precision(number)
        if single is not None:
            return single
    kind = np.finfo(value.dtype if isinstance(value, np.floating) else np.float64)
    # str instead of float: it writes float32's 0.07, which is another float64.
    written = Fraction(str(value))
    # Every half-precision number is short, so its origin is unknown.
    if kind.bits < 32 or len(_digits(str(value))) <= kind.precision - (1 if kind.bits == 32 else 3):
        return written
    slack = _slack(kind.dtype.type, written)
    ratio, quotient = (written.limit_denominator(n) for n in (LARGEST_DENOMINATOR, LARGEST_QUOTIENT))
    # Up to nine places: with more, a ratio of counts could pass for a decimal.
    short = _short_decimal(written, min(9, kind.precision - 1), slack)
    if short is None and abs(ratio - written) <= slack:
        short = ratio
    if short is None and kind.bits > 32 and abs(quotient - written) <= slack / 64:  # no second ratio is as near
        short = quotient
    return short or _short_decimal(written, kind.precision - 1, slack) or written


def _meant_in_single_precision(number: float) -> Fraction | None:
    """Read a single-precision number in a wider type, such as `tensor.item()`; None if it may be a ratio of counts."""
    single = str(np.float32(number))
    short = None
    if Fraction(number).denominator > LARGEST_DENOMINATOR:  # others may be counts over a power of two
        short = _short_decimal(Fraction(single), 5, _slack(np.float32, Fraction(single)))
    return Fraction(single) if short is None and len(_digits(single)) <= 6 else short


def _slack(kind: type[np.floating], number: Fraction) -> Fraction:
    """Return the rounding error of a few operations on numbers near one."""
    eps = Fraction(float(np.finfo(kind).eps))
    return min(eps * (4 if kind is np.float32 else 256), abs(number) / 1000)


def _short_decimal(number: Fraction, places: int, slack: Fraction) -> Fraction | None:
    """Return the shortest decimal with at most `places` places within `slack`."""
    decimals = (Fraction(round(number * 10**n), 10**n) for n in range(places + 1))
    return next((decimal for decimal in decimals if abs(decimal - number) <= slack), None)


def _digits(text: str) -> str:
    """Return the significant digits of a number.

    Example:
        >>> _digits("0.0500"), _digits("1.5e-07")
        ('5', '15')
    """
    return text.partition("e")[0].lstrip("-0.").replace(".", "").rstrip("0")
