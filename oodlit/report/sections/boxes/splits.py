"""The headline of every OOD split: metrics per box, and how many unknown objects were found or missed."""

from collections.abc import Iterator, Mapping
from typing import Any

from oodlit.metrics.entry import MetricEntry
from oodlit.objects.metrics.registry import box_metrics, meaning
from oodlit.objects.results import ObjectResults, headline, headline_metrics
from oodlit.report.headline import Cell, percent_text
from oodlit.report.section import Section, ShownBoxes

BOX_COUNTS = {
    "tau": "threshold of the OOD score: boxes below it are called unknown",
    "ID boxes": "boxes of the ID images above t*",
    "boxes": "boxes of the split above t*",
}
"""Columns after the metrics, with their explanations."""


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section for each split."""
    results = shown.results
    metrics = {name: box_metrics(results.settings)[name] for name in headline_metrics(results.settings)}
    for number, name in enumerate(results.splits):
        content = {
            "coverage": results.row("no_boxes", dataset=name),
            "no_boxes": percent_text(results.value("no_boxes", dataset=name)),
            "id_name": results.id_dataset.name,
            "settings": results.settings,
            "t_star_rule": results.run.t_star_rule or "given",
            "table": _table(results, name, metrics),
        }
        title = f"{name}: which boxes are unknown objects?"
        yield Section(f"split{number}", title, name, "boxes/splits.html", content)


def _table(results: ObjectResults, split: str, metrics: Mapping[str, MetricEntry]) -> dict[str, Any]:
    per_box = [name for name in metrics if metrics[name].function.__module__.startswith("oodlit.metrics.")]
    starts = {0, len(per_box), len(metrics)}
    columns = [
        {"label": name, "explanation": meaning(name, results.settings), "better": entry.better}
        for name, entry in metrics.items()
    ]
    columns += [{"label": label, "explanation": text, "better": ""} for label, text in BOX_COUNTS.items()]
    rows = [
        {
            "detector": detector,
            "cells": [
                Cell(c.text, c.value, interval=c.interval, title=c.reason, best=c.is_best, first=place in starts)
                for place, c in enumerate(cells)
            ],
        }
        for detector, cells in headline(results, split).items()
    ]
    return {
        "sets": [
            {"name": "per box", "detail": "without objects", "columns": len(per_box)},
            {"name": "open set", "detail": "unknown objects found or missed", "columns": len(metrics) - len(per_box)},
            {"name": "threshold and counts", "detail": "boxes above t*", "columns": len(BOX_COUNTS)},
        ],
        "columns": [{**column, "first": place in starts} for place, column in enumerate(columns)],
        "rows": rows,
        "sorted_by": next((place for place, name in enumerate(metrics) if name == "ap_u"), -1),
        "is_roomy": False,
    }
