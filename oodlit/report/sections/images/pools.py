"""Pools, from the easiest to the hardest classes: severity curves, their rank among published ones, hardest classes."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from oodlit.base.roles import Role
from oodlit.report.headline import Cell, percent_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import level_curves
from oodlit.results import DatasetInfo, Results
from oodlit.results.plots import severity_curve
from oodlit.results.plots.charts import Line
from oodlit.results.plots.severity_curve import comparable, detector_kappa
from oodlit.results.published.cood import LEVELS, rank_curve
from oodlit.results.views.pools import hardest_classes

MAX_LINES = 6
"""Maximum number of colored lines, with the colors `--s0` to `--s5` of the page; others are gray."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each pool."""
    for number, info in enumerate(shown.sets(Role.POOL)):
        if shown.detectors:
            content = pool_view(shown.results, info, shown.detectors, shown.thumbnails.classes)
            title = f"{info.name}: from the easiest to the hardest classes"
            yield Section(f"pool{number}", title, f"{info.name}: severity", "pools.html", content)


def pool_view(
    results: Results, info: DatasetInfo, detectors: Sequence[str], shot: Callable[[str], str]
) -> dict[str, Any]:
    """Content of the section of one pool.

    Args:
        results: A run.
        info: The pool.
        detectors: Detectors in the order of the page.
        shot: Returns the CSS classes of the picture with a key; empty = there is none.
    """
    table = results.levels(info.name)
    curves = {name: rows["auroc"].astype(float).tolist() for name, rows in table.groupby("detector", sort=False)}
    ranked = sorted(detectors, key=lambda name: (math.isnan(sum(curves[name])), -sum(curves[name])))
    chart = severity_curve.describe(results, info.name, detectors=list(detectors))
    facts = results.run.pools[info.name]
    colours = _colours(results, chart.lines)
    return {
        "detail": f"{facts.classes:,} classes, {info.id_classes:,} per level. The severity of classes is estimated on"
        f" {facts.estimation:,} images, and {facts.test:,} other images are tested ({info.split})",
        "levels": list(dict.fromkeys(table["level"])),
        "svg": level_curves(chart, colours),
        "legend": [{"name": label.strip(), "colour": colour} for label, colour in colours.items()],
        "others": len(chart.lines) - len(colours),
        "bands": [band.label for band in chart.bands],
        "rows": [_row(name, table[table["detector"] == name]) for name in ranked],
        "standings": _standings(results, info, curves),
        "hardest": [_hardest(results, info, name, shot) for name in detectors],
    }


def _colours(results: Results, lines: Sequence[Line]) -> dict[str, str]:
    """Choose colors for lines: for two detectors with published curves, and for the best of the others that differ."""
    curves: dict[tuple[float, ...], str] = {}
    for line in lines:
        curves.setdefault(line.y, line.label)
    differing = list(curves.values())
    published = [label for label in differing if detector_kappa(results, label.split(maxsplit=2)[2])][:2]
    others = [label for label in differing if label not in published][: MAX_LINES - len(published)]
    chosen = [label for label in differing if label in {*published, *others}]
    return {label: f"--s{index}" for index, label in enumerate(chosen)}


def _row(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    values = rows["auroc"].astype(float).tolist()
    ends = zip(values, rows["auroc_low"], rows["auroc_high"], rows["level"], rows["n_test"], strict=True)
    cells = [_cell(f"{name}, {level}", value, low, high, n) for value, low, high, level, n in ends]
    return {"name": name, "cells": [*cells, _cell(f"{name}, mean", sum(values) / len(values))]}


def _cell(name: str, value: float, low: float = math.nan, high: float = math.nan, n: int = 0) -> Cell:
    if math.isnan(value):
        return Cell("?", title=f"{name}: undefined")
    interval = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}], n = {n}"
    miss = round(min(100.0, 200 * (1 - value)), 1)  # AUROC 1/2 and below has the full colour
    return Cell(f"{100 * value:.1f}", value, miss, title=f"{name}: AUROC {percent_text(value)}{interval}")


def _standings(results: Results, info: DatasetInfo, curves: dict[Any, list[float]]) -> list[str]:
    """Rank the run among the published models, one line per detector with published curves."""
    if not comparable(info):
        return []
    lines = []
    for name, levels in curves.items():
        kappa = detector_kappa(results, str(name))
        if kappa is None or any(map(math.isnan, levels)):
            continue
        found = rank_curve(levels, kappa)
        first, middle, last = found.below[0], found.below[LEVELS // 2], found.below[-1]
        lines.append(
            f"{name} has a higher mean AUROC over levels than {found.mean_below} of {found.published} published curves"
            f" ({kappa}). Its AUROC is above {first} of them at level s0, {middle} at s{LEVELS // 2}, and {last} at"
            f" s{LEVELS - 1}."
        )
    return lines


def _hardest(results: Results, info: DatasetInfo, detector: str, shot: Callable[[str], str]) -> dict[str, Any]:
    found = hardest_classes(results, info, detector)
    known = dict(enumerate(results.id_dataset.class_names))
    items = [
        {
            "name": row["ood_class"],
            "prediction": known.get(int(row["prediction"]), f"class {row['prediction']}"),
            "shot": shot(str(row["key"])),
            "detail": f"severity {row['severity']:.4g}"
            + ("" if math.isnan(row["standard_error"]) else f" ± {row['standard_error']:.2g}")
            + f", AUROC {100 * row['auroc']:.1f} %",
        }
        for row in found.to_dict("records")
    ]
    return {"detector": detector, "items": items, "confidence": found["confidence"].iloc[0] if len(found) else ""}
