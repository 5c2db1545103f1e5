r"""Compute the table of metrics from the tables of boxes, images and objects.

AUROC and FPR are per box and ignore objects; open-set metrics tell what becomes of the objects. Both stand side by
side, each with t\*, tau and the numbers of boxes, objects and images it is computed from.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch

from oodlit.base.roles import Role
from oodlit.metrics.entry import Value
from oodlit.objects.metrics.boxes import Boxes
from oodlit.objects.metrics.registry import box_metrics
from oodlit.objects.metrics.scored_boxes import ScoredBoxes
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.metrics.thresholds import unknown_threshold
from oodlit.objects.results.tables import Tables, scored_boxes
from oodlit.results.evaluation.table_rows import COLUMNS, TableRow
from oodlit.results.info import DatasetInfo, id_dataset
from oodlit.results.names import MODEL
from oodlit.results.record_parts import UndefinedValue

OBJECT_COLUMNS = (*COLUMNS, "n_objects", "n_images", "t_star", "tau", "iou", "rules")
"""Columns of the table. `n_id` and `n_ood` count boxes with a confidence of at least t*; `rule` is the rule of tau."""


@dataclass
class Evaluated:
    """The table of metrics, and why values are undefined.

    Args:
        rows: One per value, by `OBJECT_COLUMNS`.
        taus: Threshold of every detector.
        undefined: One entry with its reason for every NaN.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    taus: dict[str, float] = field(default_factory=dict)
    undefined: list[UndefinedValue] = field(default_factory=list)

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a table."""
        floats = dict.fromkeys(("value", "ci_low", "ci_high", "t_star", "tau", "iou"), "float64")
        counts = dict.fromkeys(("n_id", "n_ood", "n_objects", "n_images"), "int64")
        return pd.DataFrame(self.rows, columns=list(OBJECT_COLUMNS)).astype(floats | counts)

    def add(self, metric: str, boxes: Boxes, value: Value, *, has_cut: bool = True) -> None:
        """Append one value; a NaN comes with its reason."""
        settings, of_detector = boxes.settings, bool(boxes.detector)
        place = boxes.detector or MODEL, boxes.own.dataset, boxes.group, metric
        known, own = (int(rows.sum()) for rows in boxes.rows)
        n_ood, rule = 0 if boxes.own is boxes.known else own, settings.rule if of_detector else ""
        of_boxes = {
            "n_objects": len(boxes.own.objects),
            "n_images": len(boxes.own.images),
            "t_star": settings.t_star if has_cut else math.nan,
            "tau": boxes.tau,
            "iou": settings.iou if of_detector else math.nan,
            "rules": settings.rules if of_detector else "",
        }
        self.rows.append(TableRow(*place, value.value, known, n_ood, *value.interval, rule)._asdict() | of_boxes)
        if math.isnan(value.value):
            self.undefined.append(UndefinedValue(*place, value.reason or "undefined by its definition"))


def evaluate_tables(
    tables: Tables,
    datasets: Sequence[DatasetInfo],
    detectors: Sequence[str],
    class_names: Sequence[str],
    settings: ObjectSettings,
    *,
    id_quality: Mapping[str, float] | None = None,
) -> Evaluated:
    """Compute every metric of every detector on every data set.

    Args:
        tables: See `make_tables`.
        datasets: One with role ID, and the OOD splits.
        detectors: Names of the columns of scores.
        class_names: The ID classes; empty = not known.
        settings: How to compute.
        id_quality: Mean average precision, `map`, `map50` and `map50/<class>`; see `oodlit.objects.metrics.id_quality`.
    """
    classes, result = tuple(class_names), Evaluated()
    ordered = [id_dataset(datasets), *(info for info in datasets if info.role is Role.OOD)]
    every = [scored_boxes(tables, info.name, classes, settings) for info in ordered]
    known = every[0]
    for info, own in zip(ordered, every, strict=True):
        _add_network(result, info.role, Boxes(known, own, classes, quality=id_quality or {}))
    for detector in detectors:
        result.taus[detector], reason = _tau(known, detector)
        for own in every[1:]:
            _add_detector(result, Boxes(known, own, classes, detector, result.taus[detector]), reason)
    return result


def _tau(known: ScoredBoxes, detector: str) -> tuple[float, str]:
    """The given threshold, or the threshold from the rule; NaN with a reason if there is none."""
    settings = known.settings
    if (given := settings.given_tau(detector)) is not None:
        return given, ""
    scores = torch.from_numpy(known.scores(detector))
    if not len(scores):
        return math.nan, "tau: there is no ID box"
    if settings.tau_rule == "normal" and not bool(scores.isfinite().all()):
        return math.nan, "tau: some ID scores are infinite, so their mean is undefined; use tau_rule='quantile'"
    return unknown_threshold(scores, rule=settings.tau_rule or "quantile", tpr=settings.tpr), ""


def _add_network(result: Evaluated, role: Role, boxes: Boxes) -> None:
    """Values of the network alone on one data set."""
    for name, entry in box_metrics(boxes.settings).items():
        if not entry.of_classifier or role not in entry.of:
            continue
        groups, is_quality = [""], "quality" in entry.needs
        if is_quality:
            groups = [key.partition("/")[2] for key in boxes.quality if key.partition("/")[0] == name]
        for group in groups:
            row = replace(boxes, group=group)
            result.add(name, row, entry.compute(row), has_cut=not is_quality)


def _add_detector(result: Evaluated, boxes: Boxes, no_tau: str) -> None:
    """Values of a detector on an OOD split."""
    hits = replace(boxes, hits_only=True)
    for name, entry in box_metrics(boxes.settings).items():
        needs_hits = "hits" in entry.needs
        if entry.of_classifier or (needs_hits and not boxes.known.is_annotated):
            continue
        row = hits if needs_hits else boxes
        has_none = entry.by_threshold and math.isnan(boxes.tau)
        result.add(name, row, Value(math.nan, reason=no_tau) if has_none else entry.compute(row))
