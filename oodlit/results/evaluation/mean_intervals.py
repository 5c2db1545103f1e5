"""Intervals of means over OOD classes and of pooled values: by the stratified bootstrap if all classes are large."""

import math
import zlib
from collections.abc import Sequence

import numpy as np

from oodlit.metrics.uncertainty.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.metrics.uncertainty.intervals import normal_quantile
from oodlit.metrics.uncertainty.small_classes import mean_auroc_interval, mean_fpr_interval, mean_share_interval, mover
from oodlit.results.evaluation.scored_sets import ScoredSet, ScoredSets
from oodlit.results.evaluation.table_rows import Address, TableRow, TableRows
from oodlit.results.glossary import MEAN, POOLED, TableMetric

SMALL_CLASS, FEW_ID = 20, 100
"""With fewer images in a class, or fewer ID images, bootstrap intervals are too narrow (docs/uncertainty.md)."""


def add_mean_intervals(
    sets: ScoredSets, scored: ScoredSet, detectors: Sequence[str], rows: TableRows, metrics: Sequence[TableMetric]
) -> list[str]:
    """Add intervals to the means and pooled values of one OOD set with classes, for all detectors in one call.

    Nothing is done without bootstrap, classes or ID images, or if a class is empty; see `ScoredSet.present`.

    Returns:
        Why means have no interval.
    """
    settings, info = sets.settings, scored.info
    sizes = np.array([len(members) for members in scored.members.values()])
    if not (settings.bootstrap and detectors and len(sizes) and len(sets.id) and sizes.all()):
        return []
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
        some = [
            metric
            for metric in metrics
            if metric.entry.mean_interval in ("fpr", "auroc") and ("shifted" in metric.entry.needs) == with_shifted
        ]
        id_scores, ood_scores = columns[:, id_rows], columns[:, scored.rows[keep]]
        if is_small(sizes, len(id_rows)):
            for index, detector in enumerate(detectors):
                own = id_scores[index], ood_scores[index], codes[keep]
                _add_small(rows, Address(detector, info.name), *own, some, sets)
            continue
        replicates = stratified_bootstrap(
            id_scores,
            ood_scores,
            codes[keep],
            tpr=settings.tpr,
            rule=settings.rule,
            repetitions=settings.bootstrap,
            seed=seed,
        )
        for metric in some:
            kind = metric.entry.mean_interval
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
            if metric.entry.mean_interval == "share":
                _add_of_shares(rows, detector, scored, metric.name, sizes, seed, sets)
    return _single_images(scored, sizes)


def is_small(sizes: np.ndarray, n_id: int) -> bool:
    """Whether bootstrap intervals would be too narrow for these classes and ID images.

    Example:
        >>> [is_small(np.array(sizes), n_id) for sizes, n_id in (([31, 40], 500), ([5, 400], 500), ([31, 40], 60))]
        [False, True, True]
    """
    return bool(sizes.min() < SMALL_CLASS or n_id < FEW_ID)


def _add_small(
    rows: TableRows,
    address: Address,
    id_scores: np.ndarray,
    ood_scores: np.ndarray,
    codes: np.ndarray,
    metrics: Sequence[TableMetric],
    sets: ScoredSets,
) -> None:
    """Intervals of one detector for small classes or few ID images.

    Pooled values treat all images as one class, and so do means over classes of one image each: the classes are then
    draws from all possible classes, whose mean the interval is about. Other means with such a class have none.
    """
    settings, one, sizes = sets.settings, np.zeros_like(codes), np.bincount(codes)
    for metric in metrics:
        for prefix, groups in ((MEAN, one if (sizes == 1).all() else codes), (POOLED, one)):
            if np.bincount(groups).min() < 2:
                continue
            if metric.entry.mean_interval == "auroc":
                ends = mean_auroc_interval(id_scores, ood_scores, groups, confidence=settings.confidence)
            else:
                ends = mean_fpr_interval(
                    id_scores, ood_scores, groups, tpr=settings.tpr, confidence=settings.confidence
                )
            value = rows.rows[(*address, prefix + metric.name)].value
            rows.set_interval(address, prefix + metric.name, min(ends[0], value), max(ends[1], value))


def _add_of_shares(
    rows: TableRows, detector: str, scored: ScoredSet, metric: str, sizes: np.ndarray, seed: int, sets: ScoredSets
) -> None:
    """Interval of a mean of shares whose threshold is fixed by the training images."""
    settings, found = sets.settings, _of_classes(rows, detector, scored, metric)
    if len(found) < len(sizes) or any(math.isnan(row.value) for row in found):
        return
    shares, equal = np.array([row.value for row in found]), np.full(len(sizes), 1 / len(sizes))
    z = normal_quantile(float(settings.confidence))
    if sizes.min() >= SMALL_CLASS:  # drawing a class again is a binomial draw
        draws = np.random.default_rng(seed).binomial(sizes, shares, (settings.bootstrap, len(sizes))) / sizes
        low, high = percentile_interval(draws.mean(axis=1), confidence=settings.confidence)
        ends = _unless_equal(float(low), float(high), found, equal)
    elif sizes.min() > 1:
        ends = mean_share_interval(shares, sizes, equal, z)
    elif (sizes == 1).all():
        ends = mean_share_interval(np.array([shares.mean()]), np.array([len(sizes)]), np.ones(1), z)
    else:
        return
    rows.set_interval(Address(detector, scored.info.name), MEAN + metric, *ends)


def _single_images(scored: ScoredSet, sizes: np.ndarray) -> list[str]:
    """Notes about classes with one image: why means have no interval, or what the interval covers."""
    single = [name for name, size in zip(scored.members, sizes, strict=True) if size == 1]
    if not single:
        return []
    if len(single) == len(sizes) > 1:
        return [
            f"all {len(sizes)} classes of {scored.info.name!r} have one image each: intervals of means treat the"
            " classes as a sample of all possible classes"
        ]
    return [
        f"means over the classes of {scored.info.name!r} have no interval: {len(single)} of {len(sizes)} classes have"
        f" only one image (first: {single[0]!r}), so the variation within these classes is unknown"
    ]


def _of_classes(rows: TableRows, detector: str, scored: ScoredSet, metric: str) -> list[TableRow]:
    """The existing rows of the classes."""
    found = (rows.rows.get((detector, scored.info.name, name, metric)) for name in scored.members)
    return [row for row in found if row is not None]


def _unless_equal(low: float, high: float, found: Sequence[TableRow], weights: np.ndarray) -> tuple[float, float]:
    """The interval of all draws or, where all draws agree, an interval combined from those of the classes.

    If no image of any class is accepted, or every image is, all bootstrap draws agree. They would claim a certainty
    that the classes, each with its own interval, do not have; see `mover`.
    """
    if low != high:
        return low, high
    values, lows, highs = np.array([(row.value, row.ci_low, row.ci_high) for row in found]).T
    return mover(values, lows, highs, weights)
