"""All comparable values of the runs side by side, for one detector at a time."""

import math
from collections.abc import Iterator
from typing import Any

from oodlit.report.headline import Cell, interval_text, of_sets
from oodlit.report.section import Section, folded
from oodlit.report.several import Several
from oodlit.results.comparing.several_runs import mean_ranks_of
from oodlit.results.glossary import value_text


def sections(several: Several) -> Iterator[Section]:
    """Yield one section, if any value can be compared: the best detectors and the usual baselines, best runs first."""
    values = {column: several.values(column) for column in several.like}
    columns = [column for column in values if values[column].notna().any(axis=None)]
    if not columns:
        return
    places = {dataset: min(several.place(c) for c in columns if c.dataset == dataset) for dataset, *_ in columns}
    columns.sort(key=lambda column: places[column.dataset])  # stable: OOD sets first, as they are in the runs
    first = columns[0]
    ranks = mean_ranks_of(values[first], ascending=several.entry(first).better == "lower")
    runs, detectors = ([str(name) for name in of.sort_values(kind="stable").index] for of in ranks)
    rows = {title: of_sets(several.runs[title]) for title in runs}

    def cell(title: str, detector: str, place: int) -> Cell:
        column = columns[place]
        own: Any = values[column][detector]
        value = float(own[title])
        if math.isnan(value):
            return Cell()
        row = rows[title][detector, column.dataset, column.metric]
        entry = several.entry(column)
        text = value_text(value, is_count=entry.is_count)
        is_best = value == (own.min() if entry.better == "lower" else own.max()) and own.nunique() > 1
        return Cell(text, value, interval="" if entry.is_count else interval_text(row), best=bool(is_best))

    def table(detector: str) -> dict[str, Any]:
        cells = {title: [cell(title, detector, place) for place in range(len(columns))] for title in runs}
        return {"detector": detector, "rows": [(t, several.links.get(t, ""), own) for t, own in cells.items()]}

    kept = [name for name in detectors if name not in folded(detectors)]
    heads = [(several.label(column), several.entry(column).better) for column in columns]
    content = {"heads": heads, "tables": [table(name) for name in kept], "left_out": len(detectors) - len(kept)}
    yield Section("sets", "Runs side by side", "side by side", "side_by_side.html", content)
