"""From per-image scores to the tidy table: every metric of every detector, data set and class, computed once."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.metrics.aupr import aupr_error_of, aupr_success_of
from oodlit.metrics.aurc import augrc, aurc
from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.detection_error import detection_error_of
from oodlit.metrics.fpr import accepted_count
from oodlit.metrics.id_auroc import id_auroc
from oodlit.metrics.intervals import augrc_interval, auroc_interval, auroc_interval_of
from oodlit.metrics.ranking import Ranking, SortedScores, as_sorted, rank
from oodlit.metrics.threshold import acceptance_threshold
from oodlit.metrics.undefined import UndefinedMetricWarning
from oodlit.metrics.unit_tests import fails
from oodlit.results.evaluation.mean_intervals import add_mean_intervals
from oodlit.results.evaluation.parts import Part, Parts
from oodlit.results.evaluation.rows import Evaluation, Place, Rows
from oodlit.results.info import DatasetInfo, Settings, percent
from oodlit.results.names import MODEL
from oodlit.roles import Role

__all__ = ["Evaluation", "evaluate"]

_NO_INTERVAL = (math.nan, math.nan)


def evaluate(
    scores: pd.DataFrame, datasets: Sequence[DatasetInfo], detectors: Sequence[str], settings: Settings
) -> Evaluation:
    """Compute the table from checked per-image scores.

    Warns once, with the first reason, if values are undefined.

    Args:
        scores: As given by `checked`.
        datasets: All streams of the run.
        detectors: Names of the score columns.
        settings: How to compute.

    Returns:
        The table with thresholds, reasons and notes.
    """
    parts, rows = Parts(scores, datasets, settings), Rows(settings.confidence)
    notes = _add_accuracies(parts, rows)
    if settings.der and not parts.train:
        notes.append(f"{', '.join(parts.der_names)}: not computed, no training images were scored (role 'train')")
    thresholds = {}
    for detector in detectors:
        run = _DetectorRun(detector, parts, rows, notes)
        run.add_rows()
        thresholds[detector] = run.thresholds
    for part in parts.of(Role.OOD):
        add_mean_intervals(parts, part, detectors, rows)
    if rows.undefined:
        first = rows.undefined[0]
        warnings.warn(
            f"{len(rows.undefined)} values are undefined (NaN); first: {first['metric']} of {first['detector']}"
            f" on {'/'.join(filter(None, (first['dataset'], first['ood_class'])))}: {first['reason']};"
            " all reasons are in run['undefined']",
            UndefinedMetricWarning,
            stacklevel=3,
        )
    return Evaluation(rows.frame(), thresholds, rows.undefined, notes)


def _add_accuracies(parts: Parts, rows: Rows) -> list[str]:
    """Accuracy of the classifier on labelled sets; returns notes on sets without labels."""
    notes = []
    for part in parts.of(Role.ID, Role.SHIFT):
        info = part.info
        if len(part) and not part.is_labelled.any():
            notes.append(f"accuracy of {info.name!r}: not computed, its images have no labels")
            continue
        for group, name in [(None, ""), *(parts.groups(info) if info.role is Role.SHIFT else [])]:
            members = part.members(group)
            members = members[part.is_labelled[members]]
            correct, total = int(part.is_correct[members].sum()), len(members)
            rows.share(Place(MODEL, info.name, name), "accuracy", correct, total, n_id=total, n_ood=0)
    return notes


@dataclass(frozen=True, eq=False)
class _Reference:
    """What OOD images are ranked against."""

    id_scores: SortedScores
    spectrum: SortedScores | None
    """ID and shifted images together; None without shifted images."""
    correct_below: Tensor | None
    """Number of correct predictions among the i lowest ID scores, i = 0 .. n; None without labels."""


class _DetectorRun:
    """All rows of one detector."""

    def __init__(self, detector: str, parts: Parts, rows: Rows, notes: list[str]) -> None:
        self.detector, self.parts, self.rows, self.notes = detector, parts, rows, notes
        self.settings = parts.settings
        id_values = parts.values(detector, parts.id)
        id_scores = as_sorted(id_values)
        self.thresholds: dict[str, float] = {}
        if len(id_scores):
            self.thresholds[self.settings.fpr_name] = acceptance_threshold(
                id_scores, tpr=self.settings.tpr, rule=self.settings.rule
            )
        self.thresholds |= self._der_thresholds()
        spectrum = None
        if parts.shifted:
            spectrum = as_sorted(torch.cat([id_values, *(parts.values(detector, p) for p in parts.shifted)]))
        correct_below = None
        if parts.id.is_labelled.all():
            correct = torch.from_numpy(parts.id.is_correct)[id_values.argsort()]
            correct_below = torch.cat([torch.zeros(1, dtype=torch.int64), correct.cumsum(0)])
        self.reference = _Reference(id_scores, spectrum, correct_below)

    def add_rows(self) -> None:
        """Rows of all data sets, in their order."""
        add = {
            Role.ID: self._add_id,
            Role.SHIFT: self._add_shift,
            Role.OOD: self._add_ood,
            Role.UNIT_TEST: self._add_unit_tests,
        }
        for part in self.parts.of(*add):
            add[part.info.role](part)

    # --- detection error rates ---

    def _der_thresholds(self) -> dict[str, float]:
        """Thresholds from correctly classified training images; NaN if there is none, empty if they are not scored."""
        parts = self.parts
        if not parts.train:
            return {}
        scored = [parts.values(self.detector, part) for part in parts.train]
        if all(bool(values.isnan().all()) for values in scored):  # detectors that read images may have no such scores
            names = ", ".join(parts.der_names)
            self.notes.append(f"{self.detector}: {names} not computed, it did not score the training images")
            return {}
        correct = torch.cat([v[torch.from_numpy(p.is_correct)] for v, p in zip(scored, parts.train, strict=True)])
        if len(correct) == 0:
            return dict.fromkeys(parts.der_names, math.nan)
        keep = as_sorted(correct)
        return {
            f"der{percent(s)}": acceptance_threshold(keep, tpr=s, rule=self.settings.rule) for s in self.settings.der
        }

    def _add_der(
        self, place: Place, values: Tensor, is_correct: np.ndarray, *, n_id: int, n_ood: int, prefix: str = ""
    ) -> None:
        for name in self.parts.der_names:
            if name not in self.thresholds:
                continue
            if math.isnan(self.thresholds[name]):
                reason = "no training image is classified correctly"
                self.rows.add(place, prefix + name, math.nan, n_id=n_id, n_ood=n_ood, reason=reason)
                continue
            errors = int(((values.double() >= self.thresholds[name]) != torch.from_numpy(is_correct)).sum())
            rule = self.settings.rule
            self.rows.share(place, prefix + name, errors, len(values), n_id=n_id, n_ood=n_ood, rule=rule)

    # --- ID images, shifted images ---

    def _add_id(self, part: Part) -> None:
        place, n = Place(self.detector, part.info.name), len(part)
        if not part.is_labelled.all():
            self.notes.append(
                f"{self.detector}: id_auroc, aurc, augrc, oscr and der of {part.info.name!r} not computed,"
                f" {int((~part.is_labelled).sum())} of {n} images have no label"
            )
            return
        values, correct = self.parts.values(self.detector, part), torch.from_numpy(part.is_correct)
        value, interval = math.nan, _NO_INTERVAL
        if bool(correct.any()) and not bool(correct.all()):
            value = id_auroc(values, correct)
            interval = auroc_interval(values[correct], values[~correct], confidence=self.settings.confidence)
        reason = "all predictions are right, or all are wrong" if n else "there is no image"
        self.rows.add(place, "id_auroc", value, n_id=n, n_ood=0, interval=interval, reason=reason)
        for name, function in (("aurc", aurc), ("augrc", augrc)):
            value, interval = function(values, correct) if n else math.nan, _NO_INTERVAL
            if function is augrc:
                interval = augrc_interval(values, correct, confidence=self.settings.confidence)
            self.rows.add(place, name, value, n_id=n, n_ood=0, interval=interval, reason=reason)
        self._add_der(place, values, part.is_correct, n_id=n, n_ood=0)

    def _add_shift(self, part: Part) -> None:
        name = f"accepted{percent(self.settings.tpr)}"
        threshold = self.thresholds.get(self.settings.fpr_name)
        for group, kind in [(None, ""), *self.parts.groups(part.info)]:
            place, members = Place(self.detector, part.info.name, kind), part.members(group)
            values, n = self.parts.values(self.detector, part, members), len(members)
            if threshold is None:
                self.rows.add(place, name, math.nan, n_id=n, n_ood=0, reason="there is no ID score")
            else:
                accepted = int((values.double() >= threshold).sum())
                self.rows.share(place, name, accepted, n, n_id=n, n_ood=0, rule=self.settings.rule)
            if part.is_labelled.all():
                self._add_der(place, values, part.is_correct[members], n_id=n, n_ood=0)
        if not part.is_labelled.all():
            self.notes.append(f"{self.detector}: der of {part.info.name!r} not computed, images without label")

    # --- unit tests, OOD images ---

    def _add_unit_tests(self, part: Part) -> None:
        settings, info = self.settings, part.info
        failed, reasons = 0, []
        groups: list[tuple[int | None, str]] = [*self.parts.groups(info)] or [(None, "")]
        for group, name in groups:
            values = self.parts.values(self.detector, part, part.members(group))
            ranking = rank(self.reference.id_scores, values)
            if reason := self._add_fpr(Place(self.detector, info.name, name), settings.fpr_name, ranking):
                reasons.append(f"{name or info.name}: {reason}")
            else:
                failed += fails(ranking, limit=settings.unit_test_limit, tpr=settings.tpr, rule=settings.rule)
        for metric, count in (("unit_test_failures", failed), ("unit_test_passes", len(groups) - failed)):
            self.rows.add(
                Place(self.detector, info.name),
                metric,
                math.nan if reasons else float(count),
                n_id=len(self.reference.id_scores),
                n_ood=len(part),
                rule=settings.rule,
                reason="; ".join(reasons[:3]),
            )

    def _add_fpr(self, place: Place, metric: str, ranking: Ranking) -> str | None:
        """FPR with its interval; returns the reason if it is undefined."""
        rule, n_id, n_ood = self.settings.rule, ranking.n_id, ranking.n_ood
        if reason := ranking.missing():
            self.rows.add(place, metric, math.nan, n_id=n_id, n_ood=n_ood, rule=rule, reason=reason)
            return reason
        count = accepted_count(ranking, tpr=self.settings.tpr, rule=rule)
        self.rows.share(place, metric, count, n_ood, n_id=n_id, n_ood=n_ood, rule=rule)
        return None

    def _add_ood(self, part: Part) -> None:
        groups = self.parts.groups(part.info)
        everything = part.members(None)
        if groups:
            everything = np.flatnonzero(np.isin(part.groups, [group for group, _ in groups]))
        start = len(self.rows)
        for group, name in groups:
            self._add_ranked(part, part.members(group), Place(self.detector, part.info.name, name))
        per_class: dict[str, list[float]] = {}
        for row in self.rows.rows[start:]:
            per_class.setdefault(row.metric, []).append(row.value)
        place = Place(self.detector, part.info.name)
        self._add_ranked(part, everything, place, prefix="pooled_" if groups else "")
        for metric, values in per_class.items():
            empty = sum(math.isnan(value) for value in values)
            spectrum = self.reference.spectrum if metric.startswith("fs_") else None
            self.rows.add(
                place,
                f"mean_{metric}",
                math.nan if empty else math.fsum(values) / len(values),
                n_id=len(self.reference.id_scores if spectrum is None else spectrum),
                n_ood=len(everything),
                rule=self.settings.rule if "fpr" in metric or metric.startswith("der") else "",
                reason=f"{empty} of {len(values)} classes have no value",
            )

    def _add_ranked(self, part: Part, members: np.ndarray, place: Place, *, prefix: str = "") -> None:
        """All metrics of some OOD images."""
        reference, values = self.reference, self.parts.values(self.detector, part, members)
        ranking = rank(reference.id_scores, values)
        n_id, n_ood = ranking.n_id, ranking.n_ood
        reason = self._add_fpr(place, prefix + self.settings.fpr_name, ranking)
        self._add_auroc(place, f"{prefix}auroc", ranking, pooled=bool(prefix))
        for name, function in (
            ("aupr_s", aupr_success_of),
            ("aupr_e", aupr_error_of),
            ("detection_error", detection_error_of),
        ):
            value = math.nan if reason else function(ranking)
            self.rows.add(place, prefix + name, value, n_id=n_id, n_ood=n_ood, reason=reason)
        if reference.correct_below is not None:
            value = math.nan if reason else _oscr(ranking, reference.correct_below)
            self.rows.add(place, f"{prefix}oscr", value, n_id=n_id, n_ood=n_ood, reason=reason)
        if reference.spectrum is not None:
            spectrum = rank(reference.spectrum, values)
            self._add_fpr(place, f"{prefix}fs_{self.settings.fpr_name}", spectrum)
            self._add_auroc(place, f"{prefix}fs_auroc", spectrum, pooled=bool(prefix))
        is_correct = np.zeros(len(values), dtype=bool)
        self._add_der(place, values, is_correct, n_id=n_id, n_ood=n_ood, prefix=prefix)

    def _add_auroc(self, place: Place, metric: str, ranking: Ranking, *, pooled: bool) -> None:
        reason = ranking.missing()
        interval = _NO_INTERVAL
        if not pooled:  # pooled values get theirs from the bootstrap, which knows the classes
            interval = auroc_interval_of(ranking, self.settings.confidence)
        value = math.nan if reason else auroc_of(ranking)
        n_id, n_ood = ranking.n_id, ranking.n_ood
        self.rows.add(place, metric, value, n_id=n_id, n_ood=n_ood, interval=interval, reason=reason)


def _oscr(ranking: Ranking, correct_below: Tensor) -> float:
    """OSCR from running counts of correct predictions over the sorted ID scores, in integers."""
    half_losses = int((correct_below[ranking.id_below] + correct_below[ranking.id_at_most]).sum())
    half_wins = 2 * int(correct_below[-1]) * ranking.n_ood - half_losses
    return half_wins / (2 * ranking.n_id * ranking.n_ood)
