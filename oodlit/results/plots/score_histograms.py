"""Histograms of scores with the acceptance threshold."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from oodlit.base.errors import InvalidArgumentError
from oodlit.results.plots.charts import Histogram, Histograms
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.score_axis import ScoreAxis
from oodlit.results.plots.select import chosen_detectors, id_and_ood_images
from oodlit.results.run_results import RunResults


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
