"""Exact, order-independent sums: every float64 is an integer multiple of a power of two."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.errors import NonFiniteScoreError

BITS = 32
"""Bits per place (digit) of a sum; int64 can then add up 2**31 numbers."""
_MASK = 2**BITS - 1
_MANTISSA = 53
COUNT = "count"
_OTHERS = (COUNT, "inf", "-inf")
"""Names of the columns that are not places; a place is named by its power of 2**32."""


class ExactSums:
    """Exact sums of float64 numbers in a number of cells.

    A number is m 2^e with integers m and e. It is added to integers that count in places of 32 bits, as many as the
    numbers require, in practice two to four. Rounding to the nearest float64 happens once at the end: classes with the
    same images have the same sum, in any order.

    Args:
        cells: Number of sums.

    Example:
        >>> sums = ExactSums(2)
        >>> sums.add(torch.tensor([0, 0, 0, 1]), torch.tensor([1e16, 1.0, -1e16, 0.5], dtype=torch.float64))
        >>> sums.sums().tolist(), sums.means().tolist()
        ([1.0, 0.5], [0.3333333333333333, 0.5])
    """

    def __init__(self, cells: int) -> None:
        """Start at zero."""
        self._columns = {COUNT: torch.zeros(cells, dtype=torch.int64)}

    @property
    def counts(self) -> Int[Tensor, " cells"]:
        """Number of values added to each cell."""
        return self._columns[COUNT]

    def add(self, cells: Int[Tensor, " n"], values: Float[Tensor, " n"]) -> None:
        """Add every value to its cell; CPU tensors.

        Raises:
            NonFiniteScoreError: NaN among the values.
        """
        values = values.double()
        if int(bad := values.isnan().sum()):
            raise NonFiniteScoreError(f"{int(bad)} of {len(values)} values are NaN, so their mean is undefined")
        ones = torch.ones_like(cells)
        self.counts.index_add_(0, cells, ones)
        for infinity in (math.inf, -math.inf):
            here = values == infinity
            self._add(str(infinity), cells[here], ones[here])
        mantissa, exponent = torch.frexp(values.where(values.isfinite(), torch.zeros_like(values)))
        whole = (mantissa * 2.0**_MANTISSA).long()  # exact
        sign, rest = whole.sign(), whole.abs()
        low = exponent.long() - _MANTISSA
        place, shift = low // BITS, low % BITS
        first = (rest & _MASK) << shift  # below 2**63
        second = ((rest >> BITS) << shift) + (first >> BITS)
        parts = (first & _MASK, second & _MASK, second >> BITS)
        for number in range(int(place.min()), int(place.max()) + 1) if len(place) else ():
            here = place == number
            for offset, part in enumerate(parts):
                self._add(str(number + offset), cells[here], (part * sign)[here])

    def sums(self) -> Float[Tensor, " cells"]:
        """Return the sums, rounded once; infinite if an infinity was added, NaN if both were."""
        places = {int(name): values for name, values in self._columns.items() if name not in _OTHERS}
        lowest = min(places, default=0)
        whole = [0] * len(self.counts)
        for place, values in places.items():
            step = BITS * (place - lowest)
            whole = [total + (value << step) for total, value in zip(whole, values.tolist(), strict=True)]
        total = torch.tensor([_times_power(value, BITS * lowest) for value in whole], dtype=torch.float64)
        for infinity in (math.inf, -math.inf):
            if str(infinity) in self._columns:
                total = torch.where(self._columns[str(infinity)] > 0, total + infinity, total)
        return total

    def means(self) -> Float[Tensor, " cells"]:
        """Return sums divided by counts; NaN for empty cells."""
        return self.sums() / self.counts.double()

    def to_columns(self) -> dict[str, np.ndarray]:
        """Return all state as integers, one entry per cell; entries of several processes add up."""
        return {name: values.numpy() for name, values in self._columns.items()}

    @classmethod
    def from_columns(cls, columns: Mapping[str, np.ndarray]) -> "ExactSums":
        """Restore sums from `to_columns`."""
        made = cls(len(columns[COUNT]))
        for name, values in columns.items():
            made._column(name).add_(torch.from_numpy(np.array(values, dtype=np.int64)))
        return made

    def _add(self, name: str, cells: Tensor, values: Tensor) -> None:
        if values.any():
            self._column(name).index_add_(0, cells, values)

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = torch.zeros_like(self.counts)
        return self._columns[name]


def _times_power(whole: int, power: int) -> float:
    """Return whole * 2**power, rounded to the nearest float64."""
    try:
        return float(whole << power) if power >= 0 else whole / (1 << -power)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf  # `copysign` would convert it too
