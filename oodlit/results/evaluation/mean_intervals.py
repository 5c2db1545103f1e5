"""Means over data sets, and intervals of means over OOD classes and of pooled values.

Intervals are from the stratified bootstrap if all classes are large.
"""

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from oodlit.base.roles import Role
from oodlit.metrics.entry import Value
from oodlit.metrics.settings import Settings
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
    one, sizes = np.zeros_like(codes), np.bincount(codes)
    for metric in metrics:
        for prefix, groups in ((MEAN, one if (sizes == 1).all() else codes), (POOLED, one)):
            if np.bincount(groups).min() < 2:
                continue
            ends = _of_scores(metric, id_scores, ood_scores, groups, sets.settings)
            value = rows.rows[(*address, prefix + metric.name)].value
            rows.set_interval(address, prefix + metric.name, min(ends[0], value), max(ends[1], value))


def _of_scores(
    metric: TableMetric, id_scores: np.ndarray, ood_scores: np.ndarray, codes: np.ndarray, settings: Settings
) -> tuple[float, float]:
    """Interval of the mean AUROC or FPR over sets or classes."""
    if metric.entry.mean_interval == "auroc":
        return mean_auroc_interval(id_scores, ood_scores, codes, confidence=settings.confidence)
    return mean_fpr_interval(id_scores, ood_scores, codes, tpr=settings.tpr, confidence=settings.confidence)


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
        f"means over the classes of {scored.info.name!r} have no interval, because the variation within a class with"
        f" only one image cannot be estimated (such classes: {len(single)} of {len(sizes)}, first: {single[0]!r})"
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


def add_aggregates(sets: ScoredSets, detectors: Sequence[str], rows: TableRows, metrics: Iterable[TableMetric]) -> None:
    """Append the mean over data sets of every metric of OOD sets, each set with the same weight.

    A set with OOD classes counts with the value of all its images together. If a set is missing, the mean is NaN, and
    the reason names the set.
    """
    chosen = [m for m in metrics if Role.OOD in m.entry.of and not m.entry.of_set and not m.entry.of_classifier]
    for name, members in sets.settings.aggregates.items():
        found = [sets.sets[one] for one in members if one in sets.sets]
        missing = ", ".join(one for one in members if one not in sets.sets)
        for detector in detectors:
            images = _Images.of(sets, detector, found)
            for metric in chosen:
                parts = [_row(rows, detector, scored, metric.name) for scored in found]
                of_metric = [row for row in parts if row is not None]
                if len(of_metric) < len(found) or (not found and metric.entry.needs):
                    continue  # the run does not have this metric
                n_id, n_ood = (max((row.n_id for row in of_metric), default=0), sum(row.n_ood for row in of_metric))
                value = _mean(of_metric, missing)
                if not math.isnan(value.value) and sets.settings.bootstrap:
                    value = value._replace(interval=images.interval(metric, of_metric, value.value, sets.settings))
                rule = sets.settings.rule if metric.entry.by_threshold else ""
                rows.add(Address(detector, name), metric.name, value, n_id=n_id, n_ood=n_ood, rule=rule)


def _row(rows: TableRows, detector: str, scored: ScoredSet, metric: str) -> TableRow | None:
    prefix = POOLED if scored.members else ""
    return rows.rows.get((detector, scored.info.name, "", prefix + metric))


def _mean(of_metric: Sequence[TableRow], missing: str) -> Value:
    if missing:
        return Value.undefined(f"this run is missing these data sets: {missing}")
    if undefined := [row.dataset for row in of_metric if math.isnan(row.value)]:
        return Value.undefined(f"the metric has no value on {', '.join(undefined)}")
    return Value(math.fsum(row.value for row in of_metric) / len(of_metric))


class _Images(NamedTuple):
    """Scores of one detector on the sets of a mean.

    Args:
        inside: Scores of the ID images.
        spectrum: The same with those of shifted images.
        outside: Scores of the OOD images.
        codes: Position of the set of each OOD image.
    """

    inside: np.ndarray
    spectrum: np.ndarray
    outside: np.ndarray
    codes: np.ndarray

    @classmethod
    def of(cls, sets: ScoredSets, detector: str, found: Sequence[ScoredSet]) -> "_Images":
        """Collect the scores; of sets with OOD classes, those of the chosen classes."""
        scores = sets.scores[detector].to_numpy()
        parts = [
            scored.rows[np.concatenate([*scored.members.values()])] if scored.members else scored.rows
            for scored in found
        ]
        codes = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        empty = np.zeros(0, dtype=np.int64)
        spectrum = np.concatenate([sets.id.rows, *(shifted.rows for shifted in sets.shifted)])
        outside = scores[np.concatenate([empty, *parts])]
        return cls(scores[sets.id.rows], scores[spectrum], outside, codes)

    def interval(
        self, metric: TableMetric, parts: Sequence[TableRow], value: float, settings: Settings
    ) -> tuple[float, float]:
        """Interval of a mean over sets, which share their ID images; NaN for metrics without intervals."""
        inside = self.spectrum if "shifted" in metric.entry.needs else self.inside
        if metric.entry.mean_interval == "auroc" and np.bincount(self.codes).min() < 2:
            return math.nan, math.nan
        if metric.entry.mean_interval in ("auroc", "fpr"):
            low, high = _of_scores(metric, inside, self.outside, self.codes, settings)
        else:  # the ends move together if the values only depend on the shared ID images, so this is wide enough
            low, high = (math.fsum(getattr(row, end) for row in parts) / len(parts) for end in ("ci_low", "ci_high"))
        return min(low, value), max(high, value)
