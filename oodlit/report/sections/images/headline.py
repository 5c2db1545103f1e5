"""The headline: FPR and AUROC of every detector on every set."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from oodlit.base.roles import Role
from oodlit.report.detector_choice import answers, coinciding
from oodlit.report.headline import Cell, Column, classes_text, scored_images, two_digits
from oodlit.report.section import Section, Shown
from oodlit.results import DatasetInfo
from oodlit.results.names import MODEL

COST = "\n"
"""Replaces the name of a data set in columns of cost; names of data sets have no line break."""
GROUPS = {Role.OOD: "classes", Role.POOL: "classes", Role.UNIT_TEST: "tests", Role.SHIFT: "shifts"}
ROOM = 1250
"""Width of the table in pixels in a window of 1400 pixels."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section."""
    for column in shown.columns:
        _mark(shown, column)
    content = _headline(shown, [*shown.columns, *_costs(shown)])
    content |= {"sorted_by": _sorted_by(shown.columns), "is_roomy": _width(content["columns"], shown.detectors) <= ROOM}
    content = {"table": content, "answers": answers(shown), "coinciding": coinciding(shown)}
    yield Section("headline", "Which detector separates ID and OOD images?", "detectors", "headline.html", content)


def _mark(shown: Shown, column: Column) -> None:
    """Mark the best value of a column, and values that are not significantly worse."""
    table = shown.group(column.metric, column.dataset)
    if table is None:  # counts are exact; the levels of a pool hold other classes for each detector
        tells = not all(cell.best for cell in column.cells)
        for cell in column.cells:
            cell.in_group = cell.best and tells
        return
    if math.isnan(table["value"].iloc[0]):
        return
    best, tells = table["detector"].iloc[0], not table["in_group"].all()
    for name, difference, p_value, in_group in zip(
        table["detector"], table["difference"].tolist(), table["p_corrected"].tolist(), table["in_group"], strict=True
    ):
        cell = column.cells[shown.results.detectors.index(name)]
        cell.in_group = bool(in_group) and tells
        if not cell.best and not math.isnan(cell.sort):
            cell.title += f"; {100 * difference:+.2f} points relative to {best}, corrected p = {p_value:.2g}"


def _costs(shown: Shown) -> list[Column]:
    """Columns of measured times."""
    scoring = "time to score an image after the shared forward pass of the network, including extra forward passes"
    columns: list[Column] = []
    for times, label, metric, what in (
        (shown.results.run.ms_per_image, "ms per image", "ms_per_image", scoring),
        (shown.results.run.time.fit, "fit s", "fit_seconds", "seconds of the fit; empty for detectors without a fit"),
    ):
        values = [times.get(name, math.nan) for name in shown.results.detectors]
        if not all(map(math.isnan, values)):
            is_first = not columns
            cells = [Cell(first=is_first) if math.isnan(v) else Cell(two_digits(v), v, first=is_first) for v in values]
            columns.append(Column(label, COST, metric, what, is_first, cells))
    return columns


def _sorted_by(columns: Sequence[Column]) -> int:
    """Position of the column that rows are sorted by; -1 = the mean of several columns."""
    rates = [place for place, column in enumerate(columns) if column.lower_is_better and not column.is_count]
    return rates[0] if len(rates) == 1 else -1


def _width(columns: Sequence[Column], detectors: Sequence[str]) -> float:
    """Estimated width of the table in pixels, with intervals beside values."""
    cells = [max(8 * len(cell.text) + 6.5 * len(cell.interval) for cell in column.cells) for column in columns]
    heads = [8 * len(column.label) for column in columns]
    return 20 + 8 * max(map(len, detectors), default=0) + sum(34 + max(pair) for pair in zip(cells, heads, strict=True))


def _headline(shown: Shown, columns: Sequence[Column]) -> dict[str, Any]:
    results = shown.results
    sets = []
    for name, number in Counter(column.dataset for column in columns).items():
        if name == COST:
            sets.append({"name": "cost", "detail": "in addition to the network", "columns": number})
            continue
        info, n = results.dataset(name), scored_images(results, name)
        detail = f"{n:,} {'test ' if info.role is Role.POOL else ''}images"
        if info.role in GROUPS and info.class_names:
            detail += f", {classes_text(results, info) or f'{len(info.class_names)} {GROUPS[info.role]}'}"
        detail += _right_and_wrong(shown, info)
        sets.append({"name": name, "detail": detail, "columns": number})
    place = results.detectors.index
    rows = [{"detector": name, "cells": [c.cells[place(name)] for c in columns]} for name in shown.detectors]
    return {"sets": sets, "columns": columns, "rows": rows}


def _right_and_wrong(shown: Shown, info: DatasetInfo) -> str:
    """Numbers of correct and wrong predictions; the smaller one limits the precision of the ID-AUROC."""
    row = shown.rows.get((MODEL, info.name, "accuracy"))
    if info.role is not Role.ID or row is None or math.isnan(row.value):
        return ""
    right = round(row.value * row.n_id)
    return f", {right:,} correct, {row.n_id - right:,} wrong"
