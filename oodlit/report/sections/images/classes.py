"""FPR of each OOD class."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from oodlit.base.roles import Role
from oodlit.report.headline import Cell, classes_text, fpr_text, percent_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import interval_bars
from oodlit.results import DatasetInfo
from oodlit.results.plots import fpr_per_class
from oodlit.results.plots.charts import Estimate


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each OOD set with classes."""
    for number, info in enumerate(shown.sets(Role.OOD)):
        if info.class_names and shown.detectors:
            content = _class_set(shown, info)
            title = f"{info.name}: FPR of each class"
            yield Section(f"classes{number}", title, f"{info.name}: classes", "classes.html", content)


def _class_set(shown: Shown, info: DatasetInfo) -> dict[str, Any]:
    results, detectors = shown.results, shown.detectors
    grid = fpr_per_class.describe(results, info.name, detectors=detectors)
    rows = [
        {"name": name, "n": n, "kind": "", "cells": [_heat(d, name, e) for d, e in zip(detectors, cells, strict=True)]}
        for name, n, cells in zip(grid.classes, grid.sizes, grid.cells, strict=True)
        if n  # the number of the others is in the heading
    ]
    means = [_heat(d, "mean", e) for d, e in zip(detectors, grid.totals, strict=True)]
    rows.append({"name": "mean over classes", "n": "", "kind": "sum", "cells": means})
    classes = classes_text(results, info) or f"{len(grid.classes)} classes"
    return {
        "detail": f"{results.run.counts.get(info.name, 0):,} images, {classes}",
        "sizes": _sizes(grid.sizes),
        "rows": rows,
        "charts": [{"detector": name, "svg": interval_bars(grid, name)} for name in detectors],
    }


def _sizes(sizes: Sequence[int]) -> str:
    """Describe the sizes of classes with images."""
    least, most = min(filter(None, sizes), default=0), max(sizes)
    if not least:
        return ""
    span = f"{least:,} images" if least == most else f"{least:,} to {most:,} images"
    return f"Classes have {span}; one image is {percent_text(1 / least)} of the smallest class."


def _heat(detector: str, name: str, share: Estimate) -> Cell:
    title = fpr_text(detector, name, share)
    if math.isnan(share.value):
        return Cell("?", title=title)
    return Cell(f"{100 * share.value:.0f}", share.value, round(100 * share.value, 1), title=title)
