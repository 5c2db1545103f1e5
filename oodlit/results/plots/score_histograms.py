"""Histograms of scores with the acceptance threshold, on an axis that stays readable with outliers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oodlit.base.errors import InvalidArgumentError
from oodlit.results.plots.charts import Histogram, Histograms
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, id_and_ood_images
from oodlit.results.run_results import RunResults

SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
SPIKE = 0.5
"""A bin with a larger share of a data set hides the distribution in the other bins."""


@Plot
def score_histograms(
    results: RunResults, dataset: str | None = None, *, detectors: Sequence[str] | None = None, bins: int = 48
) -> Histograms:
    """Histograms of ID and OOD scores with the acceptance threshold, one panel per detector.

    Scores beyond the outermost 0.5 % of both groups are drawn in the outermost bins, infinities included. The axis is
    compressed if there are outliers, and shows ranks if a spike would hide all other scores.

    Args:
        results: The results.
        dataset: An OOD set; None = the first.
        detectors: Names of detectors; None = all.
        bins: Number of bins.

    Returns:
        The figure.

    Raises:
        UnknownNameError: The results have no such data set, class or detector.
        InvalidArgumentError: There is no OOD set, image, detector or bin.
    """
    if bins < 1:
        raise InvalidArgumentError(f"score_histograms: expected bins to be at least 1, got {bins}")
    info, inside, ood = id_and_ood_images(results, dataset)
    frames = {results.id_dataset.name: inside, info.name: ood}
    return Histograms(
        tuple(
            histogram(name, {key: rows[name].to_numpy() for key, rows in frames.items()}, results.threshold(name), bins)
            for name in chosen_detectors(results, detectors)
        )
    )


def histogram(detector: str, scores: Mapping[str, np.ndarray], threshold: float, bins: int = 48) -> Histogram:
    """The histogram of one detector.

    Args:
        detector: Name of the detector.
        scores: Scores by data set, the ID set first; any number, infinities included.
        threshold: Acceptance threshold of the detector.
        bins: Number of bins.
    """
    axis = ScoreAxis.fitting([values for values in scores.values() if len(values)], threshold, bins)
    edges = np.linspace(0.0, 1.0, bins + 1)
    counts = [np.histogram(axis.positions(values), edges)[0] for values in scores.values()]
    return Histogram(
        detector,
        tuple(scores),
        tuple(tuple((n / len(v)).tolist()) if len(v) else () for n, v in zip(counts, scores.values(), strict=True)),
        tuple(float((v >= threshold).mean()) if len(v) else math.nan for v in scores.values()),
        threshold,
        float(axis.positions(np.array([threshold]))[0]) if math.isfinite(threshold) else math.nan,
        axis.labels,
    )


@dataclass(frozen=True, eq=False)
class ScoreAxis:
    """From scores to positions in [0, 1]: linear, compressed (asinh), or the ranks of the scores.

    The axis spans the central 99 % of all scores, and the threshold; scores outside, infinities included, are at its
    ends. It is compressed if outliers would squeeze half of each set into a 25th of it. If one bin would still contain
    more than half of a data set, the axis shows ranks instead, provided that the fullest bin gets less full: equal
    widths then contain equal shares of the sets, each with the same weight.

    Args:
        low: Score at the left end.
        high: Score at the right end.
        centre: Score at which a compressed axis is widest.
        scale: Distance from the centre at which compression begins; 0 = a linear axis.
        only: The only score, if all are equal.
        ranked: Scores of every data set, ascending; empty = the axis does not show ranks.
    """

    low: float
    high: float
    centre: float = 0.0
    scale: float = 0.0
    only: float | None = None
    ranked: tuple[np.ndarray, ...] = ()

    @classmethod
    def fitting(cls, scores: Sequence[np.ndarray], threshold: float, bins: int = 48) -> "ScoreAxis":
        """The axis for these scores, one array per data set, and their threshold, to be counted in this many bins."""
        axis = cls._of_values(scores, threshold)
        if axis.only is not None or (fullest := axis.fullest(scores, bins)) <= SPIKE:
            return axis
        ends = [float(end) for values in scores for end in (values.min(), values.max())]
        ranks = cls(min(ends), max(ends), ranked=tuple(np.sort(values) for values in scores))
        return ranks if ranks.fullest(scores, bins) < fullest else axis

    @classmethod
    def _of_values(cls, scores: Sequence[np.ndarray], threshold: float) -> "ScoreAxis":
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
        # the ends of the axis are labeled: a probability must not seem to become negative
        ends = [low, high, *(float(end) for values in finite for end in (values.min(), values.max()))]
        low, high = max(low - pad, min(ends)), min(high + pad, max(ends))
        middle = max((float(np.subtract(*np.quantile(values, (0.75, 0.25)))) for values in finite), default=0.0)
        compressed = 0 < middle < (high - low) / 25
        centre = threshold if math.isfinite(threshold) else (low + high) / 2
        return cls(low, high, centre, middle) if compressed else cls(low, high)

    @property
    def labels(self) -> tuple[str, str, str]:
        """Labels of the left end, the middle and the right end of the axis."""
        if self.only is not None:
            return "", f"all at {self.only:.4g}", ""
        kind = "axis of ranks" if self.ranked else "compressed axis" if self.scale else ""
        return f"{self.low:.4g}", kind, f"{self.high:.4g}"

    def fullest(self, scores: Sequence[np.ndarray], bins: int) -> float:
        """The largest share of a data set in one bin."""
        edges = np.linspace(0.0, 1.0, bins + 1)
        counts = [np.histogram(self.positions(values), edges)[0].max() / len(values) for values in scores]
        return float(max(counts, default=0.0))

    def positions(self, values: np.ndarray) -> np.ndarray:
        """Positions of scores on the axis, 0..1."""
        if self.ranked:  # in the middle of equal scores
            ranks = [[np.searchsorted(own, values, side=side) / len(own) for side in SIDES] for own in self.ranked]
            return np.asarray(np.mean(ranks, axis=(0, 1)))
        inside = np.clip(values.astype(float), self.low, self.high)
        low, at, high = (self._moved(x) for x in (np.atleast_1d(self.low), inside, np.atleast_1d(self.high)))
        return np.asarray(np.clip((at - low) / (high - low), 0.0, 1.0))

    def _moved(self, values: np.ndarray) -> np.ndarray:
        return np.arcsinh((values - self.centre) / self.scale) if self.scale else values
