"""Shares and percentages as the numbers that were meant, so that counts are decided in integers."""

from decimal import Decimal
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

ShareLike: TypeAlias = float | int | Fraction | Decimal | str | np.generic | np.ndarray | Tensor
"""What is taken as a share; arrays and tensors of a single number."""

LARGEST_DENOMINATOR = 10**6
"""Shares such as 5/6 or 47 499/50 001 are counts over counts; there are rarely more images than this."""


def exact_number(value: object) -> Fraction | None:
    """The number that was meant, as an exact fraction; None where `value` is no finite number.

    0.95 is 95/100, not the binary number next to it, and so are 1 - 0.05, 0.1 * 9.5, `np.float32(0.95)`, "0.95" and
    `Decimal("0.95")`. A floating-point number is read as it is written if that takes few digits. Else it comes from
    arithmetic: it is the shortest decimal, or the ratio of counts, within the rounding of a few operations. Fractions,
    decimals and text are taken as they are.

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
    """The only number of a tensor or an array without dimensions, in its own precision."""
    if getattr(value, "shape", None) == () and not isinstance(value, np.generic):
        try:
            return value.numpy(force=True)[()] if hasattr(value, "numpy") else value[()]
        except TypeError:  # numpy has no bfloat16
            return value.item()
    return value


def _meant(value: Any) -> Fraction:
    number = float(value)
    if not isinstance(value, np.floating) and len(_digits(str(number))) > 12 and number == float(np.float32(number)):
        single = str(np.float32(number))  # a number of single precision in a wider type, such as `tensor.item()`
        if len(_digits(single)) <= 6:
            return Fraction(single)
    kind = np.finfo(value.dtype if isinstance(value, np.floating) else np.float64)
    # str, not float: float32's 0.07 is written so, but is another float64.
    written = Fraction(str(value))
    # Of half precision every number is short; there is no telling what it came from.
    if kind.bits < 32 or len(_digits(str(value))) <= kind.precision - (1 if kind.bits == 32 else 3):
        return written
    slack = min(Fraction(float(kind.eps)) * (4 if kind.bits == 32 else 256), abs(written) / 1000)
    decimals = [Fraction(round(written * 10**places), 10**places) for places in range(kind.precision)]
    # Up to nine places: with more, a ratio of counts could pass for a decimal.
    candidates = [*decimals[:10], written.limit_denominator(LARGEST_DENOMINATOR), *decimals[10:], written]
    return next(candidate for candidate in candidates if abs(candidate - written) <= slack)


def _digits(text: str) -> str:
    """The significant digits of a number.

    Example:
        >>> _digits("0.0500"), _digits("1.5e-07")
        ('5', '15')
    """
    return text.partition("e")[0].lstrip("-0.").replace(".", "").rstrip("0")
