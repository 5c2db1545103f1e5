"""Means over data sets, such as near and far: rows of the table with their own names."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from oodlit.base.roles import Role
from oodlit.metrics.entry import Value
from oodlit.metrics.settings import Settings
from oodlit.metrics.uncertainty.small_classes import mean_auroc_interval, mean_fpr_interval
from oodlit.results.evaluation.scored_sets import ScoredSet, ScoredSets
from oodlit.results.evaluation.table_rows import Address, TableRow, TableRows
from oodlit.results.glossary import POOLED, TableMetric


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
        return Value.undefined(f"{missing} not in this run")
    if undefined := [row.dataset for row in of_metric if math.isnan(row.value)]:
        return Value.undefined(f"{', '.join(undefined)} without a value")
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
        confidence = settings.confidence
        if metric.entry.mean_interval == "auroc":
            if np.bincount(self.codes).min() < 2:
                return math.nan, math.nan
            low, high = mean_auroc_interval(inside, self.outside, self.codes, confidence=confidence)
        elif metric.entry.mean_interval == "fpr":
            low, high = mean_fpr_interval(inside, self.outside, self.codes, tpr=settings.tpr, confidence=confidence)
        else:  # the ends move together if the values only depend on the shared ID images, so this is wide enough
            low, high = (math.fsum(getattr(row, end) for row in parts) / len(parts) for end in ("ci_low", "ci_high"))
        return min(low, value), max(high, value)
