"""Pools on the page: severity curves, their rank among published ones, and the hardest classes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from oodlit.errors import InvalidArgumentError
from oodlit.report.headline import Cell, percent_text
from oodlit.report.svg import level_curves
from oodlit.results import DatasetInfo, Results
from oodlit.results.comparing.correlation import level_correlation
from oodlit.results.info import id_dataset
from oodlit.results.plots import severity_curve
from oodlit.results.plots.charts import Line
from oodlit.results.plots.severity_curve import comparable, detector_kappa
from oodlit.results.published.cood import LEVELS, rank_curve
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import severities
from oodlit.roles import Role

MAX_LINES = 6
"""Maximum number of colored lines, with the colors `--s0` to `--s5` of the page; others are gray."""
HARDEST = 12
MIN_MODELS = 3
"""Minimum number of models for a meaningful correlation."""


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
        "name": info.name,
        "detail": f"{facts.classes} classes, {facts.estimation} images that estimate their severity and"
        f" {facts.test} test images ({info.split}); {info.id_classes} classes per level",
        "levels": list(dict.fromkeys(table["level"])),
        "svg": level_curves(chart, colours),
        "legend": [{"name": label.strip(), "colour": colour} for label, colour in colours.items()],
        "others": len(chart.lines) - len(colours),
        "bands": [band.label for band in chart.bands],
        "rows": [_row(name, table[table["detector"] == name]) for name in ranked],
        "standings": _standings(results, info, curves),
        "hardest": [_hardest(results, info, name, shot) for name in detectors],
    }


def hardest_classes(results: RunResults, info: DatasetInfo, detector: str, limit: int = HARDEST) -> pd.DataFrame:
    """Return the hardest classes of a pool, the hardest first, each with its test image of the highest score.

    Returns:
        Columns of `Results.severities`, with `key` and `prediction` of the image. Empty if levels are undefined.
    """
    try:
        rows = severities(results, info.name, detector).iloc[::-1].head(limit)
    except InvalidArgumentError:  # the table and `undefined` state why
        return pd.DataFrame()
    places = {info.class_names.index(name): name for name in rows["ood_class"]}
    own = results.scores[(results.scores["dataset"] == info.name) & results.scores["group"].isin(list(places))]
    own = own.assign(ood_class=own["group"].map(places)).sort_values([detector, "key"], ascending=[False, True])
    return rows.merge(own.drop_duplicates("ood_class")[["ood_class", "key", "prediction"]], on="ood_class", how="left")


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
            f"{name}: above {found.mean_below} of {found.published} published curves ({kappa}) by the mean over levels;"
            f" {first} at s0, {middle} at s{LEVELS // 2}, {last} at s{LEVELS - 1}."
        )
    return lines


def _hardest(results: Results, info: DatasetInfo, detector: str, shot: Callable[[str], str]) -> dict[str, Any]:
    found = hardest_classes(results, info, detector)
    known = dict(enumerate(id_dataset(results.datasets).class_names))
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


def correlation_views(runs: Mapping[str, Results]) -> list[dict[str, Any]]:
    """Correlate the order of runs between levels, for every pool of at least three runs and every common detector.

    With two runs, each correlation would be 1 or -1. If pools differ, the reason replaces the numbers.
    """
    views = []
    names = dict.fromkeys(info.name for one in runs.values() for info in one.datasets if info.role is Role.POOL)
    for name in names:
        own = {title: one for title, one in runs.items() if any(info.name == name for info in one.datasets)}
        if len(own) < MIN_MODELS:
            continue
        first = next(iter(own.values()))
        common = [detector for detector in first.detectors if all(detector in one.detectors for one in own.values())]
        view: dict[str, Any] = {"name": name, "models": len(own), "problem": "", "charts": []}
        try:
            for detector in common:
                table = level_correlation(own, name, [detector])
                rows = [
                    {"name": level, "cells": [_correlation(float(value)) for value in row]}
                    for level, row in zip(table.index, table.to_numpy(), strict=True)
                ]
                view["charts"].append({"detector": detector, "levels": list(table.columns), "rows": rows})
        except InvalidArgumentError as error:
            view["problem"] = str(error)
        views.append(view)
    return views


def _correlation(value: float) -> Cell:
    if math.isnan(value):
        return Cell("?", title="undefined: all models have the same value")
    return Cell(f"{value:.2f}", value, round(100 * max(value, 0.0), 1))
