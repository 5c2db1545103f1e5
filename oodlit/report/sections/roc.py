"""ROC curves: what another share of ID images kept would cost."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from oodlit.metrics import acceptance_threshold
from oodlit.report.headline import Cell, percent_text, share_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import roc_curves
from oodlit.results import DatasetInfo
from oodlit.results.plots import roc
from oodlit.roles import Role

COLOURED = 5
"""Curves that have a colour at first; the reader chooses others, up to the six colours of the page."""
SHARES = (0.8, 0.9, 0.95, 0.98, 0.99)


def sections(shown: Shown) -> Iterator[Section]:
    """One for each OOD set with images."""
    counts = shown.results.run["counts"]
    for number, info in enumerate(shown.sets(Role.OOD)):
        if shown.detectors and counts.get(info.name) and counts.get(shown.inside.name):
            title = f"{info.name}: what keeping more ID images costs"
            yield Section(f"roc{number}", title, f"{info.name}: ROC", "roc.html", _curves(shown, info))


def _curves(shown: Shown, info: DatasetInfo) -> dict[str, Any]:
    chart = roc.describe(shown.results, info.name, detectors=shown.detectors)
    again = _again(shown)
    places = [place for place, line in enumerate(chart.lines) if line.label not in again]
    colours = dict(zip(places, range(COLOURED), strict=False))
    shares = sorted({*SHARES, float(shown.results.settings.tpr)})
    return {
        "svg": roc_curves(chart, colours),
        "lines": [
            {
                "name": line.label,
                "colour": colours.get(place, -1),
                "title": f"{line.label}: FPR {percent_text(line.dots[0][0])} at {percent_text(line.dots[0][1])} TPR",
            }
            for place, line in enumerate(chart.lines)
        ],
        "shares": [share_text(share) for share in shares],
        "rows": [{"name": name, "cells": _costs(shown, info, name, shares)} for name in shown.detectors],
        "has_classes": bool(info.class_names),
        "images": f"the {len(shown.results.images(info.name))} OOD images together"
        if info.class_names
        else "OOD images",
    }


def _again(shown: Shown) -> set[str]:
    """Detectors whose curve is that of a better place in the order: they are not drawn in colour at first."""
    groups: dict[str, set[str]] = {}
    for pair in shown.same:
        groups.setdefault(pair.detector, {pair.detector}).add(pair.other)
    return {name for group in groups.values() for name in sorted(group, key=shown.detectors.index)[1:]}


def _costs(shown: Shown, info: DatasetInfo, detector: str, shares: list[float]) -> list[Cell]:
    """The FPR of a detector where other shares of the ID images are kept, by class and then averaged."""
    results = shown.results
    inside, rows = results.images(shown.inside.name), results.images(info.name)
    groups = rows["group"].to_numpy() if info.class_names else np.zeros(len(rows), dtype=np.int64)
    _, classes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    scores, kept = rows[detector].to_numpy(), inside[detector].to_numpy()
    cells = []
    for share in shares:
        accepted = scores >= acceptance_threshold(kept, tpr=share, rule=results.settings.rule)
        value = float((np.bincount(classes, accepted, minlength=len(sizes)) / sizes).mean())
        title = f"{detector}: FPR {percent_text(value)} where {share_text(share)} of the ID images are kept"
        cells.append(Cell(f"{100 * value:.1f}", value, round(100 * value, 1), title=title))
    return cells
