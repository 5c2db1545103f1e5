"""Tables of runs and detectors, one for each value that can be compared."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oodlit.report.headline import Cell, Place, counts_text, interval_text, of_sets
from oodlit.report.section import Section, tall
from oodlit.report.several import Several
from oodlit.results import RunColumn
from oodlit.results.comparing.several_runs import mean_ranks_of
from oodlit.results.glossary import value_text


def sections(several: Several) -> Iterator[Section]:
    """Yield one section, if any value can be compared."""
    found = {title: of_sets(results) for title, results in several.runs.items()}
    order = sorted(several.like, key=several.place)  # stable: within a metric as the sets are
    tables = [_table(several, column, found) for column in order if several.values(column).notna().any(axis=None)]
    if tables:
        yield Section("runs", "Runs and detectors", "runs and detectors", "runs.html", {"tables": tables})


def _table(several: Several, column: RunColumn, found: Mapping[str, Mapping[Place, Any]]) -> dict[str, Any]:
    values = several.values(column)
    entry = several.entry(column)
    is_lower_better, is_count = entry.better == "lower", entry.is_count
    of_runs, of_detectors = mean_ranks_of(values, ascending=is_lower_better)
    titles, detectors = _sorted(of_runs), _sorted(of_detectors)
    most = float(np.nanmax(values.to_numpy(), initial=0.0)) or 1.0
    rows = []
    for title in titles:
        own: Any = values.loc[title]
        best = float(own.min() if is_lower_better else own.max())
        cells = []
        for name in detectors:
            value = float(own[name])
            if math.isnan(value):
                cells.append(Cell("-", title=f"{name}: missing or undefined"))
                continue
            row = found[title][name, column.dataset, column.metric]
            heat = 100 * (value / most if is_count else value if is_lower_better else 1 - value)
            text = value_text(value, is_count=is_count)
            about = " ".join(filter(None, (f"{title}, {name}: {text}", interval_text(row), f"n = {counts_text(row)}")))
            cells.append(Cell(text, value, round(min(max(heat, 0), 100), 1), title=about, best=value == best))
        numbers = {"quality": several.quality_of(title), "rank": float(of_runs[title])}
        rows.append({"title": title, "link": several.links.get(title, ""), "cells": cells, **numbers})
    return {
        "label": several.label(column),
        "quality": several.quality,
        "better": "lower" if is_lower_better else "higher",
        "detectors": detectors,
        "tall": tall(detectors),
        "rows": rows,
        "means": [_mean(values[name].to_numpy(), is_count=is_count) for name in detectors],
        "ranks": [float(of_detectors[name]) for name in detectors],
    }


def _sorted(ranks: Any) -> list[str]:
    """Sort names by mean rank, the best first; names without a rank last."""
    return [str(name) for name in ranks.sort_values(kind="stable", na_position="last").index]


def _mean(values: np.ndarray, *, is_count: bool) -> str:
    return f"{values.mean():.1f}" if is_count and not np.isnan(values).any() else value_text(values.mean())
