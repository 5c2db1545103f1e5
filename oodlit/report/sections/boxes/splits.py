"""The headline of every OOD split: metrics per box, and what becomes of the unknown objects."""

from collections.abc import Iterator, Mapping
from typing import Any

from oodlit.metrics.entry import MetricEntry
from oodlit.objects.metrics.registry import box_metrics, meaning
from oodlit.objects.results import HeadlineRow, headline, headline_metrics
from oodlit.report.box_run import ShownBoxes
from oodlit.report.headline import Cell, percent_text
from oodlit.report.section import Section

BOX_COUNTS = ("tau", "ID boxes", "boxes")
BOX_COUNT_TEXTS = (
    "threshold of the OOD score: boxes below it are called unknown",
    "boxes of the ID images above t*",
    "boxes of the split above t*",
)


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section for each split."""
    results = shown.results
    metrics = {name: box_metrics(results.settings)[name] for name in headline_metrics(results.settings)}
    for number, name in enumerate(results.splits):
        rows = headline(results, name)
        content = {
            "coverage": results.row("no_boxes", dataset=name),
            "no_boxes": percent_text(results.value("no_boxes", dataset=name)),
            "id_name": results.id_dataset.name,
            "settings": results.settings,
            "t_star_rule": results.run.t_star_rule or "given",
            "table": _table(shown, metrics, rows),
        }
        title = f"{name}: which boxes are unknown objects?"
        yield Section(f"split{number}", title, name, "boxes/splits.html", content)


def _table(shown: ShownBoxes, metrics: Mapping[str, MetricEntry], rows: list[HeadlineRow]) -> dict[str, Any]:
    per_box = [name for name in metrics if metrics[name].function.__module__.startswith("oodlit.metrics.")]
    starts = {0, len(per_box), len(metrics)}
    columns = [
        {"label": name, "explanation": meaning(name, shown.results.settings), "better": entry.better}
        for name, entry in metrics.items()
    ]
    columns += [
        {"label": label, "explanation": text, "better": ""}
        for label, text in zip(BOX_COUNTS, BOX_COUNT_TEXTS, strict=True)
    ]
    return {
        "sets": [
            {"name": "per box", "detail": "without objects", "columns": len(per_box)},
            {"name": "open set", "detail": "what becomes of the objects", "columns": len(metrics) - len(per_box)},
            {"name": "threshold and counts", "detail": "boxes above t*", "columns": len(BOX_COUNTS)},
        ],
        "columns": [{**column, "first": place in starts} for place, column in enumerate(columns)],
        "rows": [{"detector": row.detector, "cells": _cells(row, starts)} for row in rows],
        "sorted_by": next((place for place, name in enumerate(metrics) if name == "ap_u"), -1),
        "is_roomy": False,
    }


def _cells(row: HeadlineRow, starts: set[int]) -> list[Cell]:
    cells = [
        Cell(c.text, c.value, interval=c.interval, title=c.reason, best=c.is_best, first=place in starts)
        for place, c in enumerate(row.cells)
    ]
    return [
        *cells,
        Cell(f"{row.tau:.4g}", row.tau, first=len(cells) in starts),
        Cell(f"{row.n_id}", row.n_id),
        Cell(f"{row.n_ood}", row.n_ood),
    ]
