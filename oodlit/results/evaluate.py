"""From per-image scores to the tidy table: every metric of every detector, data set and class, computed once."""

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.metrics.aupr import aupr_error_of, aupr_success_of
from oodlit.metrics.aurc import augrc, aurc
from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.metrics.detection_error import detection_error_of
from oodlit.metrics.fpr import accepted_count
from oodlit.metrics.id_auroc import id_auroc
from oodlit.metrics.intervals import auroc_interval, auroc_interval_of, wilson_interval
from oodlit.metrics.ranking import Ranking, SortedScores, as_sorted, rank
from oodlit.metrics.threshold import acceptance_threshold
from oodlit.metrics.undefined import UndefinedMetricWarning
from oodlit.metrics.unit_tests import fails
from oodlit.results.info import DatasetInfo, Settings, id_dataset, percent
from oodlit.roles import Role

__all__ = ["COLUMNS", "MODEL", "Evaluation", "evaluate"]

COLUMNS = ("detector", "dataset", "ood_class", "metric", "value", "n_id", "n_ood", "ci_low", "ci_high", "rule")
MODEL = "model"
"""Stands in the column `detector` where a value belongs to the classifier alone."""


class Row(NamedTuple):
    """One line of the table."""

    detector: str
    dataset: str
    ood_class: str
    metric: str
    value: float
    n_id: int
    n_ood: int
    ci_low: float = math.nan
    ci_high: float = math.nan
    rule: str = ""


@dataclass
class Evaluation:
    """The table and what has to be said about it.

    Args:
        table: The tidy table.
        thresholds: Acceptance thresholds by detector and metric.
        undefined: One entry per NaN value, with its reason.
        notes: What was not computed at all, and why.
    """

    table: pd.DataFrame
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    undefined: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def evaluate(
    scores: pd.DataFrame, datasets: Sequence[DatasetInfo], detectors: Sequence[str], settings: Settings
) -> Evaluation:
    """Compute the table from checked per-image scores.

    Warns once, with the reasons, if values are undefined.

    Args:
        scores: As given by `checked`.
        datasets: All streams of the run.
        detectors: Names of the score columns.
        settings: How to compute.

    Returns:
        The table with thresholds, reasons and notes.
    """
    builder = _Builder(scores, datasets, settings)
    builder.add_accuracies()
    for detector in detectors:
        builder.add_detector(detector)
    for info in datasets:
        if info.role is Role.OOD:
            builder.add_bootstrap(info, detectors)
    result = builder.finish()
    if result.undefined:
        first = result.undefined[0]
        warnings.warn(
            f"{len(result.undefined)} values are undefined (NaN); first: {first['metric']} of {first['detector']}"
            f" on {'/'.join(filter(None, (first['dataset'], first['ood_class'])))}: {first['reason']};"
            " all reasons are in run['undefined']",
            UndefinedMetricWarning,
            stacklevel=3,
        )
    return result


@dataclass
class _Part:
    """The rows of one data set, as arrays."""

    info: DatasetInfo
    rows: np.ndarray
    groups: np.ndarray
    is_correct: np.ndarray
    labelled: np.ndarray

    def members(self, group: int | None) -> np.ndarray:
        """Positions within the part of one group, or all."""
        return np.arange(len(self.rows)) if group is None else np.flatnonzero(self.groups == group)


class _Builder:
    def __init__(self, scores: pd.DataFrame, datasets: Sequence[DatasetInfo], settings: Settings) -> None:
        self.scores, self.settings, self.datasets = scores, settings, tuple(datasets)
        names, labels = scores["dataset"].to_numpy(), scores["label"].to_numpy()
        groups, correct = scores["group"].to_numpy(), labels == scores["prediction"].to_numpy()
        self.parts: dict[str, _Part] = {}
        for info in datasets:
            rows = np.flatnonzero(names == info.name)
            self.parts[info.name] = _Part(
                info, rows, groups[rows], correct[rows] & (labels[rows] >= 0), labels[rows] >= 0
            )
        self.id = self.parts[id_dataset(datasets).name]
        self.rows: list[Row] = []
        self.index: dict[tuple[str, str, str, str], int] = {}
        self.result = Evaluation(pd.DataFrame())
        self.train = [p for p in self.parts.values() if p.info.role is Role.TRAIN and len(p.rows)]
        if settings.der and not self.train:
            self.result.notes.append(
                f"{', '.join(self._der_names())}: not computed, no training images were scored (role 'train')"
            )

    def _der_names(self) -> list[str]:
        return [f"der{percent(share)}" for share in self.settings.der]

    def _values(self, detector: str, part: _Part) -> Tensor:
        return torch.from_numpy(self.scores[detector].to_numpy()[part.rows])

    def groups_of(self, info: DatasetInfo) -> list[tuple[int, str]]:
        """Index and name of the groups to report, restricted to the chosen classes."""
        chosen = self.settings.classes.get(info.name)
        return [(i, name) for i, name in enumerate(info.class_names) if chosen is None or name in chosen]

    # --- rows ---

    def put(self, row: Row, reason: str | None = None) -> None:
        self.index[row[:4]] = len(self.rows)
        self.rows.append(row)
        if math.isnan(row.value):
            self.result.undefined.append(
                dict(zip(COLUMNS[:4], row[:4], strict=True)) | {"reason": reason or "the definition has no answer"}
            )

    def put_share(self, where: tuple[str, str, str, str], count: int, total: int, *, kind: str, rule: str = "") -> None:
        """A share of images of one kind ("id" or "ood") with its Wilson interval."""
        n_id, n_ood = (total, 0) if kind == "id" else (len(self.id.rows), total)
        if total == 0:
            self.put(Row(*where, math.nan, n_id, n_ood, rule=rule), "there is no image")
            return
        low, high = wilson_interval(count, total, confidence=self.settings.confidence)
        self.put(Row(*where, count / total, n_id, n_ood, low, high, rule))

    # --- the classifier ---

    def add_accuracies(self) -> None:
        for part in self.parts.values():
            info = part.info
            if info.role not in (Role.ID, Role.SHIFT):
                continue
            if not part.labelled.any() and len(part.rows):
                self.result.notes.append(f"accuracy of {info.name!r}: not computed, its images have no labels")
                continue
            groups = self.groups_of(info) if info.role is Role.SHIFT else []
            for group, name in [(None, ""), *groups]:
                members = part.members(group)
                members = members[part.labelled[members]]
                where = (MODEL, info.name, name, "accuracy")
                self.put_share(where, int(part.is_correct[members].sum()), len(members), kind="id")

    # --- one detector ---

    def add_detector(self, detector: str) -> None:
        id_values = self._values(detector, self.id)
        id_scores = as_sorted(id_values)
        spectrum = self._full_spectrum(detector, id_values)
        thresholds: dict[str, float] = {}
        if len(id_scores):
            thresholds[self.settings.fpr_name] = acceptance_threshold(
                id_scores, tpr=self.settings.tpr, rule=self.settings.rule
            )
        if self.train and self._scored_training(detector):
            thresholds |= self._der_thresholds(detector)
        self.result.thresholds[detector] = thresholds
        correct = torch.from_numpy(self.id.is_correct)[id_values.argsort(stable=True)]
        correct_below = torch.cat([torch.zeros(1, dtype=torch.int64), correct.cumsum(0)])
        for part in self.parts.values():
            if part.info.role is Role.ID:
                self._add_id(detector, part, id_values, thresholds)
            elif part.info.role is Role.SHIFT:
                self._add_shift(detector, part, thresholds)
            elif part.info.role is Role.UNIT_TEST:
                self._add_unit_tests(detector, part, id_scores)
            elif part.info.role is Role.OOD:
                self._add_ood(detector, part, id_scores, spectrum, correct_below, thresholds)

    def _full_spectrum(self, detector: str, id_values: Tensor) -> SortedScores | None:
        shifted = [self._values(detector, p) for p in self.parts.values() if p.info.role is Role.SHIFT and len(p.rows)]
        return as_sorted(torch.cat([id_values, *shifted])) if shifted else None

    def _scored_training(self, detector: str) -> bool:
        """Whether there are scores of training images; detectors that read images may have none."""
        if not all(bool(self._values(detector, part).isnan().all()) for part in self.train):
            return True
        names = ", ".join(self._der_names())
        self.result.notes.append(f"{detector}: {names} not computed, it did not score the training images")
        return False

    def _der_thresholds(self, detector: str) -> dict[str, float]:
        correct = torch.cat([self._values(detector, p)[torch.from_numpy(p.is_correct)] for p in self.train])
        if len(correct) == 0:
            return dict.fromkeys(self._der_names(), math.nan)
        keep = as_sorted(correct)
        return {
            f"der{percent(s)}": acceptance_threshold(keep, tpr=s, rule=self.settings.rule) for s in self.settings.der
        }

    def _put_der(
        self,
        where: tuple[str, str, str],
        values: Tensor,
        is_correct: np.ndarray,
        thresholds: Mapping[str, float],
        *,
        kind: str,
        prefix: str = "",
    ) -> None:
        for name in self._der_names():
            if name not in thresholds:
                continue
            if math.isnan(thresholds[name]):
                row = Row(*where, prefix + name, math.nan, len(values) * (kind == "id"), len(values) * (kind == "ood"))
                self.put(row, "no training image is classified correctly")
                continue
            wrong = (values.double() >= thresholds[name]) != torch.from_numpy(is_correct)
            self.put_share((*where, prefix + name), int(wrong.sum()), len(values), kind=kind, rule=self.settings.rule)

    def _add_id(self, detector: str, part: _Part, values: Tensor, thresholds: Mapping[str, float]) -> None:
        name = part.info.name
        if not part.labelled.all():
            self.result.notes.append(
                f"{detector}: id_auroc, aurc, augrc, oscr and der of {name!r} not computed,"
                f" {int((~part.labelled).sum())} of {len(part.rows)} images have no label"
            )
            return
        correct = torch.from_numpy(part.is_correct)
        n = len(values)
        mixed = bool(correct.any()) and not bool(correct.all())
        reason = "all predictions are right, or all are wrong" if n else "there is no image"
        ends = (math.nan, math.nan)
        if mixed:
            ends = auroc_interval(values[correct], values[~correct], confidence=self.settings.confidence)
        value = id_auroc(values, correct) if mixed else math.nan
        self.put(Row(detector, name, "", "id_auroc", value, n, 0, *ends), reason)
        self.put(Row(detector, name, "", "aurc", aurc(values, correct) if n else math.nan, n, 0), reason)
        self.put(Row(detector, name, "", "augrc", augrc(values, correct) if n else math.nan, n, 0), reason)
        self._put_der((detector, name, ""), values, part.is_correct, thresholds, kind="id")

    def _add_shift(self, detector: str, part: _Part, thresholds: Mapping[str, float]) -> None:
        values = self._values(detector, part)
        accepted = torch.zeros(len(values), dtype=torch.bool)
        if (threshold := thresholds.get(self.settings.fpr_name)) is not None:
            accepted = values.double() >= threshold
        for group, name in [(None, ""), *self.groups_of(part.info)]:
            members = part.members(group)
            where = (detector, part.info.name, name)
            if len(self.id.rows):
                self.put_share(
                    (*where, f"accepted{percent(self.settings.tpr)}"),
                    int(accepted[torch.from_numpy(members)].sum()),
                    len(members),
                    kind="id",
                    rule=self.settings.rule,
                )
            if part.labelled.all():
                self._put_der(where, values[torch.from_numpy(members)], part.is_correct[members], thresholds, kind="id")
        if not part.labelled.all():
            self.result.notes.append(f"{detector}: der of {part.info.name!r} not computed, images without label")

    def _add_unit_tests(self, detector: str, part: _Part, id_scores: SortedScores) -> None:
        settings, info = self.settings, part.info
        values = self._values(detector, part)
        failed, reasons, total = 0, [], 0
        groups: list[tuple[int | None, str]] = [*self.groups_of(info)] or [(None, "")]
        for group, name in groups:
            members = part.members(group)
            ranking = rank(id_scores, values[torch.from_numpy(members)])
            total += 1
            if reason := self._put_fpr((detector, info.name, name, settings.fpr_name), ranking):
                reasons.append(f"{name or info.name}: {reason}")
            else:
                failed += fails(ranking, limit=settings.unit_test_limit, tpr=settings.tpr, rule=settings.rule)
        why = "; ".join(reasons[:3])
        for metric, count in (("unit_test_failures", failed), ("unit_test_passes", total - failed)):
            value = math.nan if reasons else float(count)
            row = Row(detector, info.name, "", metric, value, len(id_scores), len(values), rule=settings.rule)
            self.put(row, why)

    def _put_fpr(self, where: tuple[str, str, str, str], ranking: Ranking) -> str | None:
        """FPR with its interval; returns the reason if it is undefined."""
        rule = self.settings.rule
        if reason := ranking.missing():
            self.put(Row(*where, math.nan, ranking.n_id, ranking.n_ood, rule=rule), reason)
            return reason
        count = accepted_count(ranking, tpr=self.settings.tpr, rule=rule)
        low, high = wilson_interval(count, ranking.n_ood, confidence=self.settings.confidence)
        self.put(Row(*where, count / ranking.n_ood, ranking.n_id, ranking.n_ood, low, high, rule))
        return None

    def _add_ood(
        self,
        detector: str,
        part: _Part,
        id_scores: SortedScores,
        spectrum: SortedScores | None,
        correct_below: Tensor,
        thresholds: Mapping[str, float],
    ) -> None:
        info = part.info
        values = self._values(detector, part)
        groups = self.groups_of(info)
        everything = part.members(None)
        if groups:
            everything = np.flatnonzero(np.isin(part.groups, [group for group, _ in groups]))
        plan: list[tuple[np.ndarray, str, str]] = [(part.members(group), name, "") for group, name in groups]
        plan.append((everything, "", "pooled_" if groups else ""))
        by_metric: dict[str, list[float]] = {}
        for members, name, prefix in plan:
            chosen = values[torch.from_numpy(members)]
            start = len(self.rows)
            self._put_rankings((detector, info.name, name), id_scores, chosen, correct_below, prefix=prefix)
            if spectrum is not None:
                self._put_spectrum((detector, info.name, name), spectrum, chosen, prefix=prefix)
            wrong = np.zeros(len(chosen), dtype=bool)
            self._put_der((detector, info.name, name), chosen, wrong, thresholds, kind="ood", prefix=prefix)
            if name:
                for row in self.rows[start:]:
                    by_metric.setdefault(row.metric, []).append(row.value)
        for metric, per_class in by_metric.items():
            empty = sum(math.isnan(value) for value in per_class)
            value = math.nan if empty else math.fsum(per_class) / len(per_class)
            n_id = len(spectrum) if spectrum is not None and metric.startswith("fs_") else len(id_scores)
            rule = self.settings.rule if "fpr" in metric or metric.startswith("der") else ""
            row = Row(detector, info.name, "", f"mean_{metric}", value, n_id, len(everything), rule=rule)
            self.put(row, f"{empty} of {len(per_class)} classes have no value")

    def _put_rankings(
        self,
        where: tuple[str, str, str],
        id_scores: SortedScores,
        values: Tensor,
        correct_below: Tensor,
        *,
        prefix: str,
    ) -> None:
        ranking = rank(id_scores, values)
        reason = self._put_fpr((*where, prefix + self.settings.fpr_name), ranking)
        metrics: dict[str, float] = dict.fromkeys(("auroc", "aupr_s", "aupr_e", "detection_error"), math.nan)
        if not reason:
            metrics = {
                "auroc": auroc_of(ranking),
                "aupr_s": aupr_success_of(ranking),
                "aupr_e": aupr_error_of(ranking),
                "detection_error": detection_error_of(ranking),
            }
        if self.id.labelled.all():
            metrics["oscr"] = math.nan if reason else _oscr(ranking, correct_below)
        for name, value in metrics.items():
            ends = self._auroc_ends(ranking, prefix) if name == "auroc" else (math.nan, math.nan)
            self.put(Row(*where, prefix + name, value, ranking.n_id, ranking.n_ood, *ends), reason)

    def _put_spectrum(
        self, where: tuple[str, str, str], spectrum: SortedScores, values: Tensor, *, prefix: str
    ) -> None:
        ranking = rank(spectrum, values)
        reason = self._put_fpr((*where, f"{prefix}fs_{self.settings.fpr_name}"), ranking)
        value = math.nan if reason else auroc_of(ranking)
        ends = self._auroc_ends(ranking, prefix)
        self.put(Row(*where, f"{prefix}fs_auroc", value, ranking.n_id, ranking.n_ood, *ends), reason)

    def _auroc_ends(self, ranking: Ranking, prefix: str) -> tuple[float, float]:
        """Interval of an AUROC; pooled values get theirs from the bootstrap, which knows the classes."""
        return (math.nan, math.nan) if prefix else auroc_interval_of(ranking, self.settings.confidence)

    # --- intervals of means and pooled values ---

    def add_bootstrap(self, info: DatasetInfo, detectors: Sequence[str]) -> None:
        part, settings = self.parts[info.name], self.settings
        groups = self.groups_of(info)
        if not (settings.bootstrap and detectors and groups and len(self.id.rows)):
            return
        code = np.full(len(info.class_names), -1)
        code[[group for group, _ in groups]] = np.arange(len(groups))
        codes = code[part.groups]
        keep = np.flatnonzero(codes >= 0)
        if not np.bincount(codes[keep], minlength=len(groups)).all():
            return
        columns = self.scores[list(detectors)].to_numpy().T
        shifted = [p.rows for p in self.parts.values() if p.info.role is Role.SHIFT and len(p.rows)]
        variants = {"": self.id.rows}
        if shifted:
            variants["fs_"] = np.concatenate([self.id.rows, *shifted])
        for variant, rows in variants.items():
            replicates = stratified_bootstrap(
                columns[:, rows],
                columns[:, part.rows[keep]],
                codes[keep],
                tpr=settings.tpr,
                rule=settings.rule,
                repetitions=settings.bootstrap,
                # Depends on the data set's name, not on its position: other sets do not change its intervals.
                seed=settings.seed + zlib.crc32(info.name.encode()),
            )
            names = {"fpr": variant + settings.fpr_name, "auroc": variant + "auroc"}
            for kind, metric in names.items():
                for prefix in ("mean", "pooled"):
                    ends = percentile_interval(getattr(replicates, prefix)(kind), confidence=settings.confidence)
                    self._set_interval(detectors, info, f"{prefix}_{metric}", ends)

    def _set_interval(
        self, detectors: Sequence[str], info: DatasetInfo, metric: str, ends: tuple[np.ndarray, np.ndarray]
    ) -> None:
        low, high = ends
        for index, detector in enumerate(detectors):
            position = self.index[detector, info.name, "", metric]
            self.rows[position] = self.rows[position]._replace(ci_low=float(low[index]), ci_high=float(high[index]))

    def finish(self) -> Evaluation:
        self.result.table = pd.DataFrame(self.rows, columns=list(COLUMNS)).astype(
            dict.fromkeys(("n_id", "n_ood"), "int64") | dict.fromkeys(("value", "ci_low", "ci_high"), "float64")
        )
        return self.result


def _oscr(ranking: Ranking, correct_below: Tensor) -> float:
    """OSCR from running counts of correct predictions over the sorted ID scores, in integers."""
    half_losses = int((correct_below[ranking.id_below] + correct_below[ranking.id_at_most]).sum())
    half_wins = 2 * int(correct_below[-1]) * ranking.n_ood - half_losses
    return half_wins / (2 * ranking.n_id * ranking.n_ood)
