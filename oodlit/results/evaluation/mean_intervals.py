"""Intervals of means over OOD classes and of pooled values, by the stratified bootstrap."""

import math
import zlib
from collections.abc import Sequence

import numpy as np

from oodlit.metrics.uncertainty.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.results.evaluation.scored_sets import ScoredSet, ScoredSets
from oodlit.results.evaluation.table_rows import Address, TableRow, TableRows
from oodlit.results.glossary import MEAN, POOLED, TableMetric


def add_mean_intervals(
    sets: ScoredSets, scored: ScoredSet, detectors: Sequence[str], rows: TableRows, metrics: Sequence[TableMetric]
) -> None:
    """Give intervals to the means and pooled values of one OOD set with classes, for all detectors in one call.

    Nothing is done without bootstrap, classes or ID images, or if a class is empty.
    """
    settings, info = sets.settings, scored.info
    sizes = np.array([len(members) for members in scored.members.values()])
    if not (settings.bootstrap and detectors and len(sizes) and len(sets.id) and sizes.all()):
        return
    codes = np.full(len(scored), -1)
    for code, members in enumerate(scored.members.values()):
        codes[members] = code
    keep = np.flatnonzero(codes >= 0)
    # Depends on the data set's name, not on its position: other sets do not change its intervals.
    seed = settings.seed + zlib.crc32(info.name.encode())
    columns = sets.scores[list(detectors)].to_numpy().T
    shifted = {False: sets.id.rows}
    if sets.shifted:
        shifted[True] = np.concatenate([sets.id.rows, *(other.rows for other in sets.shifted)])
    equal = np.full(len(sizes), 1 / len(sizes))
    for with_shifted, id_rows in shifted.items():
        replicates = stratified_bootstrap(
            columns[:, id_rows],
            columns[:, scored.rows[keep]],
            codes[keep],
            tpr=settings.tpr,
            rule=settings.rule,
            repetitions=settings.bootstrap,
            seed=seed,
        )
        for metric in metrics:
            kind = metric.entry.mean_interval
            if kind not in ("fpr", "auroc") or ("shifted" in metric.entry.needs) != with_shifted:
                continue
            for prefix, draws, weights in (
                (MEAN, replicates.mean(kind), equal),
                (POOLED, replicates.pooled(kind), sizes / sizes.sum()),
            ):
                low, high = percentile_interval(draws, confidence=settings.confidence)
                for index, detector in enumerate(detectors):
                    found = _of_classes(rows, detector, scored, metric.name)
                    ends = _unless_equal(float(low[index]), float(high[index]), found, weights)
                    rows.set_interval(Address(detector, info.name), prefix + metric.name, *ends)
    for detector in detectors:
        for metric in metrics:
            if metric.entry.mean_interval != "share":
                continue
            found = _of_classes(rows, detector, scored, metric.name)
            if len(found) == len(sizes) and not any(math.isnan(row.value) for row in found):
                shares = np.array([row.value for row in found])
                # The threshold is fixed by the training images: drawing a class again is a binomial draw.
                draws = np.random.default_rng(seed).binomial(sizes, shares, (settings.bootstrap, len(sizes))) / sizes
                low, high = percentile_interval(draws.mean(axis=1), confidence=settings.confidence)
                ends = _unless_equal(float(low), float(high), found, equal)
                rows.set_interval(Address(detector, info.name), MEAN + metric.name, *ends)


def _of_classes(rows: TableRows, detector: str, scored: ScoredSet, metric: str) -> list[TableRow]:
    """The rows of the classes, as far as there are any."""
    found = (rows.rows.get((detector, scored.info.name, name, metric)) for name in scored.members)
    return [row for row in found if row is not None]


def _unless_equal(low: float, high: float, found: Sequence[TableRow], weights: np.ndarray) -> tuple[float, float]:
    """The interval of all draws, or, where they agree, that of a weighted mean from the intervals of its classes.

    If no image of any class is accepted, or every image is, all bootstrap draws agree. They would claim a certainty
    that the classes, each with its own interval, do not have. The alternative is MOVER (Zou and Donner 2008).
    """
    if low != high:
        return low, high
    values, lows, highs = np.array([(row.value, row.ci_low, row.ci_high) for row in found]).T
    mean = float((weights * values).sum())
    below = float(np.sqrt(np.square(weights * (values - lows)).sum()))
    above = float(np.sqrt(np.square(weights * (highs - values)).sum()))
    return max(0.0, mean - below), min(1.0, mean + above)
