"""The headline of a run: its columns, their values, and the order of detectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from oodlit.base.roles import Role
from oodlit.results import DatasetInfo, Results
from oodlit.results.any_results import AnyResults
from oodlit.results.glossary import entry_of, headline_metrics
from oodlit.results.plots.charts import Estimate


@dataclass
class Cell:
    """One value of a table."""

    text: str = "-"
    sort: float = math.nan
    meter: float | None = None
    interval: str = ""
    title: str = ""
    best: bool = False
    in_group: bool = False
    kind: str = "none"
    first: bool = False


@dataclass
class Column:
    """One metric of one data set in the headline."""

    label: str
    dataset: str
    metric: str
    what: str
    first: bool = False
    cells: list[Cell] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Look up the metric."""
        entry = entry_of(self.metric)
        self.better = "" if entry is None else entry.better
        self.is_count = entry is not None and entry.is_count

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is better."""
        return self.better == "lower"

    @property
    def explanation(self) -> str:
        """Description of the metric, with the better direction."""
        return f"{self.what}; {self.better} is better" if self.better else self.what


Place = tuple[str, str, str]
"""Detector, data set, metric."""


def of_sets(results: AnyResults) -> dict[Place, Any]:
    """Table rows for whole data sets, without rows per class."""
    rows = results.table[results.table["ood_class"] == ""]
    return {(str(row.detector), str(row.dataset), str(row.metric)): row for row in rows.itertuples(index=False)}


def headline_columns(results: Results) -> list[Column]:
    """Columns for FPR and AUROC of every OOD set, failed unit tests, accepted shifted images and ID-AUROC."""
    settings, tpr = results.settings, share_text(results.settings.tpr)
    wanted: list[Column] = []
    for info in results.datasets:
        name = info.name
        if info.role in (Role.OOD, Role.POOL):
            what = f"mean over {classes_text(results, info) or 'classes'}" if info.class_names else "all images"
            what = "mean over the levels of severity" if info.role is Role.POOL else what
            fpr, auroc = headline_metrics(info, settings)
            mean = "mean " if info.class_names else ""
            wanted += [Column(f"{mean}FPR@{tpr}", name, fpr, what), Column(f"{mean}AUROC %", name, auroc, what)]
        elif info.role is Role.UNIT_TEST:
            wanted.append(Column("failed", name, "unit_test_failures", "failed unit tests"))
        elif info.role is Role.SHIFT:
            what = "accepted images of known classes under input shift"
            wanted.append(Column("accepted %", name, settings.accepted_name, what))
        elif info.role is Role.ID:
            wanted.append(Column("ID-AUROC %", name, "id_auroc", "correct versus wrong predictions"))
    order = {Role.OOD: 0, Role.POOL: 1, Role.UNIT_TEST: 2, Role.SHIFT: 3, Role.ID: 4}
    wanted.sort(key=lambda column: order[results.dataset(column.dataset).role])
    return _filled(results, wanted)


def mean_columns(results: Results) -> list[Column]:
    """Columns for FPR and AUROC of every mean over data sets, such as "near" and "far" of OpenOOD."""
    metrics = {f"FPR@{share_text(results.settings.tpr)}": results.settings.fpr_name, "AUROC %": "auroc"}
    wanted = [
        Column(label, name, metric, f"mean over {', '.join(sets)}")
        for name, sets in results.settings.aggregates.items()
        for label, metric in metrics.items()
    ]
    return _filled(results, wanted)


def _filled(results: Results, wanted: Sequence[Column]) -> list[Column]:
    """The columns that the run has values of, or reasons for, with their cells."""
    rows, undefined = of_sets(results), (row for row in results.run.undefined if not row.ood_class)
    reasons = {(row.detector, row.dataset, row.metric): row.reason for row in undefined}
    for column in wanted:
        places = ((name, column.dataset, column.metric) for name in results.detectors)
        column.cells = [_headline_cell(column, rows.get(place), reasons.get(place, "")) for place in places]
        _mark_best(column)
    kept = [column for column in wanted if any(cell.title for cell in column.cells)]
    for before, column in zip([None, *kept], kept, strict=False):
        column.first = before is None or before.dataset != column.dataset
        for cell in column.cells:
            cell.first = column.first
    return kept


def _mark_best(column: Column) -> None:
    values = [cell.sort for cell in column.cells if not math.isnan(cell.sort)]
    if len(values) > 1 and column.better:
        best = min(values) if column.lower_is_better else max(values)
        for cell in column.cells:
            cell.best = cell.sort == best


def _headline_cell(column: Column, row: Any, reason: str) -> Cell:
    if row is None:
        return Cell()
    if math.isnan(row.value):
        return Cell("undefined", interval=reason, title=f"undefined; n = {counts_text(row)}")
    if column.is_count:
        return Cell(f"{row.value:.0f}", row.value, title=f"n = {counts_text(row)}")
    interval = interval_text(row)
    title = " ".join(filter(None, (f"{row.value:.6f}", interval and f"{interval} %", f"n = {counts_text(row)}")))
    if not column.lower_is_better:
        return Cell(f"{100 * row.value:.1f}", row.value, interval=interval, title=title)
    return Cell(percent_text(row.value), row.value, round(100 * row.value, 1), interval, title)


def ranked_detectors(results: Results, columns: Sequence[Column]) -> list[str]:
    """Sort detectors by their mean FPR over the OOD sets, the best first; undefined values last."""
    means = mean_rates(results, columns)
    return sorted(results.detectors, key=lambda name: (math.isnan(means[name]), means[name]))


def mean_rates(results: Results, columns: Sequence[Column]) -> dict[str, float]:
    """Mean FPR over the OOD sets by detector; 0 without OOD sets."""
    rates = [c for c in columns if c.lower_is_better and not c.is_count]
    values = {name: [c.cells[place].sort for c in rates] for place, name in enumerate(results.detectors)}
    return {name: float(np.mean(own)) if own else 0.0 for name, own in values.items()}


def scored_images(results: Results, dataset: str) -> int:
    """Number of images that the values of a data set are computed from; test images of a pool."""
    pool = results.run.pools.get(dataset)
    return pool.test if pool else results.run.counts.get(dataset, 0)


def classes_text(results: Results, info: DatasetInfo) -> str:
    """Number of classes of a set with images, if some have none, such as "63 of 64 classes"; else empty."""
    if not info.class_names or info.role is not Role.OOD:
        return ""
    rows = results.table[(results.table["dataset"] == info.name) & (results.table["ood_class"] != "")]
    known, present = rows["ood_class"].nunique(), rows.loc[rows["n_ood"] > 0, "ood_class"].nunique()
    return "" if known == present else f"{present} of {known} classes"


def partial_text(results: Results) -> str:
    """Describe data sets that were read in part (trial, skipped or missing images); empty if there are none.

    For training images, the number of read images counts, since only a sample is scored.
    """
    counts, read = results.run.counts, results.run.data.train_images
    scored: list[str] = []
    trained: list[str] = []
    for info in results.datasets:
        is_train = info.role is Role.TRAIN
        number = read if is_train else counts.get(info.name, 0)
        if None not in (number, info.num_samples) and number != info.num_samples:
            (trained if is_train else scored).append(f"{info.name} {number:,} of {info.num_samples:,}")
    lines = {"Not all images were scored": scored, "Fits and thresholds use part of the training images": trained}
    return " ".join(f"{line}: {', '.join(parts)}." for line, parts in lines.items() if parts)


def share_text(share: float) -> str:
    """Format a share in percent, with at most four digits."""
    return f"{100 * share:.4g} %"


def two_digits(value: float) -> str:
    """Format a time with two significant digits, without an exponent from 1 on.

    Example:
        >>> two_digits(0.000669), two_digits(12.3), two_digits(1234.5)
        ('0.00067', '12', '1234')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def percent_text(value: float) -> str:
    """Format a value in percent with one digit; `undefined` for NaN."""
    return "undefined" if math.isnan(value) else f"{100 * value:.1f} %"


def interval_text(row: Any) -> str:
    """Format the interval of a row in percent; empty if it has none."""
    is_empty = pd.isna(row.ci_low) or pd.isna(row.ci_high)
    return "" if is_empty else f"[{100 * row.ci_low:.1f}, {100 * row.ci_high:.1f}]"


def fpr_text(detector: str, name: str, share: Estimate) -> str:
    """Describe the FPR of a class in one line.

    Example:
        >>> fpr_text("KNN", "zebra", Estimate(0.05, n=300))
        'KNN, zebra: FPR 5.0 %, n = 300'
    """
    value = f"{percent_text(share.value)} {interval_text(share)}".strip()
    return f"{detector}, {name}: FPR {value}, n = {share.n}"


def counts_text(row: Any) -> str:
    """Describe the number of images of a row."""
    return f"{row.n_id} ID" + (f", {row.n_ood} others" if row.n_ood else "")
