"""ROC curves: the FPR for every share of kept ID images."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from oodlit.base.roles import Role
from oodlit.metrics import acceptance_threshold
from oodlit.report.headline import Cell, percent_text, share_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import roc_curves
from oodlit.results import DatasetInfo
from oodlit.results.plots import roc

COLOURED = 5
"""Initial number of colored curves; the reader can select up to six."""
SHARES = (0.8, 0.9, 0.95, 0.98, 0.99)


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each OOD set with images."""
    counts = shown.results.run.counts
    for number, info in enumerate(shown.sets(Role.OOD)):
        if shown.detectors and counts.get(info.name) and counts.get(shown.inside.name):
            title = f"{info.name}: FPR versus kept ID images"
            yield Section(f"roc{number}", title, f"{info.name}: ROC", "roc.html", _curves(shown, info), number > 0)


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
        "rows": _rows(shown, info, shares),
        "has_classes": bool(info.class_names),
        "images": f"all {len(shown.results.images(info.name))} OOD images" if info.class_names else "OOD images",
    }


def _again(shown: Shown) -> set[str]:
    """Detectors with the same curve as a better one, which are not colored initially."""
    groups: dict[str, set[str]] = {}
    for pair in shown.same:
        groups.setdefault(pair.detector, {pair.detector}).add(pair.other)
    return {name for group in groups.values() for name in sorted(group, key=shown.detectors.index)[1:]}


def _rows(shown: Shown, info: DatasetInfo, shares: list[float]) -> list[dict[str, Any]]:
    """The FPR of every detector for other shares of kept ID images, averaged over classes."""
    images, rule = shown.results.images(info.name), shown.results.settings.rule
    groups = images["group"].to_numpy() if info.class_names else np.zeros(len(images), dtype=np.int64)
    _, classes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    rows = []
    for name in shown.detectors:
        cells, scores = [], images[name].to_numpy()
        for share in shares:
            accepted = scores >= acceptance_threshold(shown.id_scores[name], tpr=share, rule=rule)
            value = float((np.bincount(classes, accepted, minlength=len(sizes)) / sizes).mean())
            title = f"{name}: FPR {percent_text(value)} if {share_text(share)} of the ID images are kept"
            cells.append(Cell(f"{100 * value:.1f}", value, round(100 * value, 1), title=title))
        rows.append({"name": name, "cells": cells})
    return rows
