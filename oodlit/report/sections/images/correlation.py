"""Whether runs keep their order from level to level of a pool."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.report.headline import Cell
from oodlit.report.section import Section
from oodlit.results import Results
from oodlit.results.comparing.correlation import level_correlation

MIN_RUNS = 3
"""Minimum number of runs for a meaningful correlation."""


def sections(runs: Mapping[str, Results]) -> Iterator[Section]:
    """Yield one section for each pool that enough runs have."""
    for number, content in enumerate(correlation_views(runs)):
        title = f"{content['name']}: is the order of runs the same at all levels?"
        yield Section(f"correlation{number}", title, f"{content['name']}: order of runs", "correlation.html", content)


def correlation_views(runs: Mapping[str, Results]) -> list[dict[str, Any]]:
    """Correlate the order of runs between levels, for every pool of at least three runs and every common detector.

    With two runs, each correlation would be 1 or -1. If pools differ, the reason replaces the numbers.
    """
    views = []
    for name in dict.fromkeys(info.name for one in runs.values() for info in one.datasets if info.role is Role.POOL):
        own = {title: one for title, one in runs.items() if any(info.name == name for info in one.datasets)}
        if len(own) < MIN_RUNS:
            continue
        first = next(iter(own.values()))
        common = [detector for detector in first.detectors if all(detector in one.detectors for one in own.values())]
        view: dict[str, Any] = {"name": name, "runs": len(own), "problem": "", "charts": []}
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
        return Cell("?", title="undefined: all runs have the same value at one of these two levels")
    return Cell(f"{value:.2f}", value, round(100 * max(value, 0.0), 1))
