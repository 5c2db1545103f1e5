"""Paired differences between the first run and the others."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from oodlit.report.headline import Cell
from oodlit.report.section import Section, tall
from oodlit.report.several import Several


def sections(several: Several) -> Iterator[Section]:
    """Yield one section, if the FPR of an OOD set can be compared."""
    table = several.differences
    if table is None:
        return
    baseline = next(iter(several.runs))
    content = {
        "baseline": baseline,
        "tests": len(table),
        "grids": [_grid(several, str(name), rows) for name, rows in table.groupby("dataset", sort=False)],
    }
    yield Section("paired", f"Differences to {baseline}", "differences", "paired_runs.html", content)


def _grid(several: Several, dataset: str, table: pd.DataFrame) -> dict[str, Any]:
    detectors = list(dict.fromkeys(table["detector"]))
    cells = {(row.run, row.detector): _cell(row) for row in table.itertuples(index=False)}
    first = table.iloc[0]
    undecided = table.loc[(table["reason"] != "") & table["p_value"].notna(), "reason"].tolist()
    detail = f"paired over {first['n']} {first['over']}"
    return {
        "name": dataset,
        "detail": f"{detail}: {undecided[0]}" if undecided else detail,
        "detectors": detectors,
        "tall": tall(detectors),
        "rows": [
            {"title": run, "link": several.links.get(run, ""), "cells": [cells[run, name] for name in detectors]}
            for run in dict.fromkeys(table["run"])
        ],
    }


def _cell(row: Any) -> Cell:
    """The difference in points, colored if it is significant after the correction."""
    if math.isnan(row.difference) or math.isnan(row.p_value):
        return Cell("?", title=f"{row.detector}, {row.run}: undefined")
    chance = row.reason or f"corrected p = {row.p_corrected:.2g}"
    interval = "" if math.isnan(row.ci_low) else f" [{100 * row.ci_low:+.1f}, {100 * row.ci_high:+.1f}]"
    title = (
        f"{row.detector}, {row.run}: {100 * row.mean:.1f} %, {row.baseline}: {100 * row.mean_baseline:.1f} %;"
        f" difference {100 * row.difference:+.2f}{interval} points, {chance}"
    )
    kind = {row.run: "pass", row.baseline: "fail"}.get(row.better, "none")
    return Cell(f"{100 * row.difference:+.1f}", row.difference, title=title, kind=kind)
