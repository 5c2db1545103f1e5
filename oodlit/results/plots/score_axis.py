"""The axis of score histograms: scores of any size, without one that squeezes the picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ScoreAxis:
    """From scores to positions in [0, 1]: linear, or compressed (asinh) where a few scores are very far away.

    It spans the central 99 % of all scores, and the threshold. What lies outside is at the ends, infinities as well.

    Args:
        low: Score at the left end.
        high: Score at the right end.
        centre: Where a compressed axis is widest.
        scale: Distance from the centre at which compression begins; 0 = a linear axis.
        only: The only score, where all are equal.
    """

    low: float
    high: float
    centre: float = 0.0
    scale: float = 0.0
    only: float | None = None

    @classmethod
    def fitting(cls, scores: Sequence[np.ndarray], threshold: float) -> "ScoreAxis":
        """The axis for these scores, one array per data set, and their threshold."""
        finite = [values[np.isfinite(values)].astype(float) for values in scores]
        finite = [values for values in finite if len(values)]
        points = [float(end) for values in finite for end in np.quantile(values, (0.005, 0.995))]
        points += [threshold] if math.isfinite(threshold) else []
        low, high = (min(points), max(points)) if points else (0.0, 1.0)
        if not high > low:
            pad = max(abs(low), 1.0) * 0.5
            same = all(bool((values == low).all()) for values in scores)
            return cls(low - pad, high + pad, only=low if points and same else None)
        pad = 0.02 * (high - low)
        # the ends of the axis are shown as numbers: a probability must not seem to be able to be negative
        ends = [low, high, *(float(end) for values in finite for end in (values.min(), values.max()))]
        low, high = max(low - pad, min(ends)), min(high + pad, max(ends))
        middle = max((float(np.subtract(*np.quantile(values, (0.75, 0.25)))) for values in finite), default=0.0)
        compressed = 0 < middle < (high - low) / 25
        centre = threshold if math.isfinite(threshold) else (low + high) / 2
        return cls(low, high, centre, middle) if compressed else cls(low, high)

    @property
    def labels(self) -> tuple[str, str, str]:
        """What stands under its left end, its middle and its right end."""
        if self.only is not None:
            return "", f"all at {self.only:.4g}", ""
        return f"{self.low:.4g}", "compressed axis" if self.scale else "", f"{self.high:.4g}"

    def positions(self, values: np.ndarray) -> np.ndarray:
        """Where scores lie between the ends of the axis."""
        inside = np.clip(values.astype(float), self.low, self.high)
        low, at, high = (self._moved(x) for x in (np.atleast_1d(self.low), inside, np.atleast_1d(self.high)))
        positions: np.ndarray = np.clip((at - low) / (high - low), 0.0, 1.0)
        return positions

    def _moved(self, values: np.ndarray) -> np.ndarray:
        return np.arcsinh((values - self.centre) / self.scale) if self.scale else values
