"""Means over data sets, and controls."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from oodlit.report.headline import interval_text, percent_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import scatter
from oodlit.results import controls


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if the run has means over data sets or controls."""
    aggregates, has_controls = shown.results.settings.aggregates, shown.results.settings.controls
    frame = controls(shown.results) if has_controls else pd.DataFrame()
    of_kind = (
        frame.pivot_table(index="detector", columns="control", values="auroc", sort=False) if len(frame) else frame
    )
    content = {
        "means": [_mean(shown, name, sets) for name, sets in aggregates.items()],
        "controls": _controls(shown, of_kind),
        "picture": _picture(of_kind),
    }
    if content["means"] or content["controls"]:
        title = "Means over data sets" if content["means"] else "Controls"
        title += " and controls" if content["means"] and content["controls"] else ""
        yield Section("means", title, title.split(maxsplit=1)[0].lower(), "means.html", content, is_folded=True)


def _mean(shown: Shown, name: str, sets: Sequence[str]) -> dict[str, Any]:
    """Values of one mean over data sets, by detector."""
    results = shown.results
    rows = results.table[(results.table["dataset"] == name) & (results.table["ood_class"] == "")]
    fpr = results.settings.fpr_name
    wanted = ("auroc", fpr, fpr.replace("fpr", "fpr_e"), "aupr_s", "aupr_e", "fs_auroc", f"fs_{fpr}")
    metrics = [metric for metric in wanted if metric in set(rows["metric"])]
    cells = {(row.detector, row.metric): row for row in rows.itertuples()}
    reasons: dict[str, dict[str, None]] = {}
    for undefined in results.run.undefined:
        if undefined.dataset == name and undefined.metric in metrics:
            reasons.setdefault(undefined.reason, {})[undefined.metric] = None
    return {
        "name": name,
        "sets": sets,
        "metrics": metrics,
        "reasons": reasons,
        "rows": [
            {"detector": detector, "cells": [_cell(cells[detector, metric]) for metric in metrics]}
            for detector in shown.detectors
            if (detector, "auroc") in cells
        ],
    }


def _cell(row: Any) -> dict[str, str]:
    return {"text": _text(row.value), "interval": interval_text(row)}


def _text(value: float) -> str:
    return "-" if math.isnan(value) else percent_text(value)


def _controls(shown: Shown, means: pd.DataFrame) -> list[dict[str, Any]]:
    kinds = [kind for kind in ("halves", "training", "covariate", "semantic", "untrained") if kind in means]
    found, values = [name for name in shown.detectors if name in means.index], means.to_dict()
    return [{"detector": name, "cells": {kind: _text(values[kind][name]) for kind in kinds}} for name in found]


def _picture(means: pd.DataFrame) -> Markup | None:
    """One point per detector: AUROC of shifted images against that of OOD images."""
    both = means.reindex(columns=["covariate", "semantic"]).dropna()
    points = {str(name): (float(x), float(y)) for name, x, y in both.itertuples(name=None)}
    labels = {"x_label": "AUROC, shifted images", "y_label": "AUROC, OOD images"}
    return scatter(points, list(points), **labels) if points else None
