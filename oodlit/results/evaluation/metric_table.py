"""Compute the tidy table from per-image scores: every metric of every detector, data set and class."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from oodlit.base.roles import UNKNOWN_CLASSES, Role
from oodlit.base.text.warn import warn
from oodlit.metrics.entry import Images, Value
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import SortedScores, as_sorted
from oodlit.metrics.numerics.undefined import UndefinedMetricWarning
from oodlit.metrics.settings import Settings
from oodlit.results.evaluation.mean_intervals import add_aggregates, add_mean_intervals
from oodlit.results.evaluation.pool_levels import add_pool_rows, describe_pools, unequal_notes
from oodlit.results.evaluation.scored_sets import ScoredSet, ScoredSets
from oodlit.results.evaluation.table_rows import Address, Evaluation, TableRows
from oodlit.results.glossary import MEAN, POOLED, TableMetric, table_metrics
from oodlit.results.info import DatasetInfo
from oodlit.results.names import MODEL, some


def evaluate(
    scores: pd.DataFrame,
    datasets: Sequence[DatasetInfo],
    detectors: Sequence[str],
    settings: Settings,
    estimates: pd.DataFrame | None = None,
) -> Evaluation:
    """Compute the table from checked per-image scores.

    Undefined values cause one warning with the first reason.

    Args:
        scores: The result of `checked`.
        datasets: All streams of the run.
        detectors: Names of the score columns.
        settings: Settings of the metrics.
        estimates: Severities of the classes of pools, see `RunResults`.

    Returns:
        The table with thresholds, reasons and notes.
    """
    sets, rows, metrics = ScoredSets(scores, datasets, settings), TableRows(), table_metrics(settings)
    notes = _add_values_of_the_classifier(sets, rows, metrics)
    of_training = [metric.name for metric in metrics if "training" in metric.entry.needs]
    if of_training and not sets.train:
        has_some = any(map(len, sets.of(Role.TRAIN)))
        why = "the training images have no predictions" if has_some else "no training images were scored (role 'train')"
        notes.append(f"{', '.join(of_training)} could not be computed, because {why}")
    thresholds = {}
    for detector in detectors:
        run = _DetectorEvaluation(detector, sets, rows, metrics, notes)
        for scored in sets.tested:
            run.add_rows(scored)
        if estimates is not None:
            for scored in sets.pools:
                add_pool_rows(sets, scored, detector, estimates, run.id_scores, rows)
        thresholds[detector] = run.thresholds
    for scored in sets.of(Role.OOD):
        notes += add_mean_intervals(sets, scored.present, detectors, rows, metrics)
        if scored.missing and scored.present.members:
            notes.append(
                f"means over the classes of {scored.info.name!r} use {len(scored.present.members)} of"
                f" {len(scored.members)} classes; the others have no images: {some(scored.missing, 3)}"
            )
    add_aggregates(sets, detectors, rows, metrics)
    present = [scored.info.name for scored in sets.shifted]
    if lost := [name for name in settings.full_spectrum if name not in present]:
        spectrum = [metric.name for metric in metrics if "shifted" in metric.entry.needs]
        reason = f"this run is missing these shifted data sets: {', '.join(lost)}"
        rows.undefine([prefix + name for name in spectrum for prefix in ("", MEAN, POOLED)], reason)
    if rows.undefined:
        first = rows.undefined[0]
        warn(
            f"{len(rows.undefined)} values are undefined (NaN); the first is {first.metric} of {first.detector} on"
            f" {'/'.join(filter(None, (first.dataset, first.ood_class)))} ({first.reason}). All reasons are in"
            " results.run.undefined, which is saved in run.json",
            UndefinedMetricWarning,
        )
    pools = {} if estimates is None else dict(describe_pools(sets, estimates))
    return Evaluation(rows.frame(), thresholds, rows.undefined, notes + unequal_notes(pools), pools)


def _add_values_of_the_classifier(sets: ScoredSets, rows: TableRows, metrics: Iterable[TableMetric]) -> list[str]:
    """Add metrics of the classifier alone on labeled images; return notes on sets without labels."""
    notes = []
    nothing = torch.empty(0)
    for scored in sets.tested:
        chosen = [m for m in metrics if m.entry.of_classifier and scored.info.role in m.entry.of]
        spectrum = [m for m in chosen if "shifted" in m.entry.needs]
        chosen = [m for m in chosen if m not in spectrum]
        if chosen and len(scored) and not scored.is_labelled.any():
            names = ", ".join(metric.name for metric in chosen)
            notes.append(
                f"{names} of {scored.info.name!r} could not be computed, because the images have no {_missing(scored)}s"
            )
            continue
        for name, members in {"": np.arange(len(scored)), **scored.members}.items():
            is_correct = torch.from_numpy(scored.is_correct[members[scored.is_labelled[members]]])
            images = Images(nothing, is_correct, sets.settings, as_sorted(nothing), nothing)
            for metric in chosen:
                value = metric.entry.compute(images)
                rows.add(Address(MODEL, scored.info.name, name), metric.name, value, n_id=len(images), n_ood=0)
        known = [scored, *sets.shifted]
        if spectrum and len(scored) and sets.shifted and all(one.is_labelled.all() for one in known):
            is_correct = torch.from_numpy(np.concatenate([one.is_correct for one in known]))
            images = Images(nothing, is_correct, sets.settings, as_sorted(nothing), nothing)
            for metric in spectrum:
                value = metric.entry.compute(images)
                rows.add(Address(MODEL, scored.info.name), metric.name, value, n_id=len(images), n_ood=0)
    return notes


def _missing(scored: ScoredSet) -> str:
    """What is missing for metrics of correct and wrong predictions."""
    return "label" if scored.has_predictions else "prediction"


class _DetectorEvaluation:
    """All rows of one detector."""

    def __init__(
        self, detector: str, sets: ScoredSets, rows: TableRows, metrics: Iterable[TableMetric], notes: list[str]
    ) -> None:
        self.detector, self.sets, self.rows, self.notes = detector, sets, rows, notes
        self.metrics = [metric for metric in metrics if not metric.entry.of_classifier]
        self.settings = settings = sets.settings
        values, order = sets.values(detector, sets.id).sort()
        self.id_scores = self.spectrum = SortedScores(values)
        if sets.shifted:
            self.spectrum = as_sorted(torch.cat([values, *(sets.values(detector, s) for s in sets.shifted)]))
        correct = torch.from_numpy(sets.id.is_correct)[order]
        self.id_correct_below = torch.cat([torch.zeros(1, dtype=torch.int64), correct.cumsum(0)])
        self.thresholds: dict[str, float] = {}
        if len(self.id_scores):
            threshold = acceptance_threshold(self.id_scores, tpr=settings.tpr, rule=settings.rule)
            self.thresholds[settings.fpr_name] = threshold
        self.thresholds |= self._thresholds_of_training()

    def _thresholds_of_training(self) -> dict[str, float]:
        """Thresholds from correctly classified training images; NaN if there are none, empty if they are not scored."""
        settings, train = self.settings, self.sets.train
        if not train:
            return {}
        scored = [self.sets.values(self.detector, part) for part in train]
        if all(bool(values.isnan().all()) for values in scored):  # detectors that read images may have no such scores
            names = [metric.name for metric in self.metrics if "training" in metric.entry.needs]
            self.notes.append(
                f"{self.detector}: {', '.join(names)} could not be computed, because the detector did not score the"
                " training images"
            )
            return {}
        correct = torch.cat([v[torch.from_numpy(part.is_correct)] for v, part in zip(scored, train, strict=True)])
        if len(correct) == 0:
            return dict.fromkeys(settings.der_names, math.nan)
        keep = as_sorted(correct)
        found = (acceptance_threshold(keep, tpr=share, rule=settings.rule) for share in settings.der)
        return dict(zip(settings.der_names, found, strict=True))

    def add_rows(self, scored: ScoredSet) -> None:
        """Rows of one data set."""
        role, name = scored.info.role, scored.info.name
        present = self._present(scored)
        metrics = [metric for metric in present if not metric.entry.of_set]
        whole = self._images(scored, np.arange(len(scored)))
        if scored.members and role in UNKNOWN_CLASSES:
            self._add_of_groups(scored, metrics)
        else:
            self._add(Address(self.detector, name), whole, metrics)
            self._add_of_groups(scored, metrics)
        if scored.members and role is Role.OOD:
            whole = self._images(scored, np.sort(np.concatenate(list(scored.members.values()))), pooled=True)
            self._add(Address(self.detector, name), whole, metrics, prefix=POOLED)
            self._add_means(scored, metrics, n_ood=len(whole))
        if of_set := [metric for metric in present if metric.entry.of_set]:
            groups = {group: self._images(scored, members) for group, members in scored.members.items()}
            self._add(Address(self.detector, name), replace(whole, groups=groups or {name: whole}), of_set)

    def _present(self, scored: ScoredSet) -> list[TableMetric]:
        """Metrics of a set whose requirements are met; missing labels are noted."""
        role, name = scored.info.role, scored.info.name
        missing = set() if self.sets.shifted else {"shifted"}
        if not self.sets.id.is_labelled.all():
            missing.add("id_labels")
        if role not in UNKNOWN_CLASSES and not scored.is_labelled.all():
            missing.add("labels")
            lost = [m.entry for m in self.metrics if role in m.entry.of and "labels" in m.entry.needs]
            lost += [m.entry for m in self.metrics if role is Role.ID and "id_labels" in m.entry.needs]
            *names, last = dict.fromkeys(entry.name for entry in lost)
            self.notes.append(
                f"{self.detector}: {' and '.join(filter(None, (', '.join(names), last)))} of {name!r} could not be"
                f" computed, because {_missing(scored)}s are missing for {int((~scored.is_labelled).sum())} of"
                f" {len(scored)} images"
            )
        if not self.thresholds.keys() & set(self.settings.der_names):
            missing.add("training")
        return [metric for metric in self.metrics if role in metric.entry.of and not metric.entry.needs & missing]

    def _images(self, scored: ScoredSet, members: np.ndarray, *, pooled: bool = False) -> Images:
        return Images(
            self.sets.values(self.detector, scored, members),
            torch.from_numpy(scored.is_correct[members]),
            self.settings,
            self.id_scores,
            self.id_correct_below,
            self.thresholds.get(self.settings.fpr_name, math.nan),
            pooled,
        )

    def _add(self, address: Address, images: Images, metrics: Iterable[TableMetric], *, prefix: str = "") -> None:
        """Add the values of some images, with a prefix before their names."""
        in_spectrum = replace(images, id_scores=self.spectrum)  # one for all metrics, as it caches its ranking
        is_known = self.sets.sets[address.dataset].info.role not in UNKNOWN_CLASSES
        for metric in metrics:
            seen = in_spectrum if "shifted" in metric.entry.needs else images
            n_id, n_ood = (len(seen), 0) if is_known else (len(seen.id_scores), len(seen))
            if "training" in metric.entry.needs:
                seen = replace(seen, threshold=self.thresholds[f"der{metric.number}"])
            if metric.entry.numbered_by == "prior":
                seen = replace(seen, prior=float(metric.number) / 100)
            value = metric.entry.compute(seen)
            self.rows.add(address, prefix + metric.name, value, n_id=n_id, n_ood=n_ood, rule=self._rule(metric))

    def _add_of_groups(self, scored: ScoredSet, metrics: Sequence[TableMetric]) -> None:
        for name, members in scored.members.items():  # one by one, as a ranking is as large as the ID set
            self._add(Address(self.detector, scored.info.name, name), self._images(scored, members), metrics)

    def _add_means(self, scored: ScoredSet, metrics: Iterable[TableMetric], *, n_ood: int) -> None:
        """Add means over the OOD classes with images, whose rows exist."""
        for metric in metrics:
            key = self.detector, scored.info.name
            found = [self.rows.rows[(*key, name, metric.name)] for name in scored.members]
            values = [row.value for row in found if row.n_ood]
            empty = sum(math.isnan(value) for value in values)
            value = Value(math.nan if empty or not values else math.fsum(values) / len(values))
            reason = (
                f"the metric is undefined for {empty} of {len(values)} classes" if values else "no class has images"
            )
            value, rule = value._replace(reason=reason), self._rule(metric)
            self.rows.add(Address(*key), MEAN + metric.name, value, n_id=found[0].n_id, n_ood=n_ood, rule=rule)

    def _rule(self, metric: TableMetric) -> str:
        return self.settings.rule if metric.entry.by_threshold else ""
