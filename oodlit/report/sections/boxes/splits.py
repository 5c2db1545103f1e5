"""The headline of every OOD split: metrics per box, and how many unknown objects were found or dismissed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from oodlit.objects.metrics.registry import box_metrics, meaning
from oodlit.objects.results import ObjectResults, headline, headline_metrics, main_metrics
from oodlit.report.headline import Cell, percent_text
from oodlit.report.section import Section, ShownBoxes

TAU = "threshold of the OOD score: boxes below it are called unknown"
_GROUPS = {True: ("per box", "without objects"), False: ("open set", "unknown objects found or dismissed")}


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section for each split."""
    results = shown.results
    metrics = headline_metrics(results.settings)
    main = main_metrics(results.settings)
    for number, name in enumerate(results.splits):
        content = {
            "coverage": results.row("no_boxes", dataset=name),
            "no_boxes": percent_text(results.value("no_boxes", dataset=name)),
            "id_name": results.id_dataset.name,
            "settings": results.settings,
            "t_star_rule": results.run.t_star_rule or "given",
            "table": _table(results, name, [*main, "tau"]),
            "more": _table(results, name, [metric for metric in metrics if metric not in main]),
        }
        title = f"{name}: which boxes are unknown objects?"
        yield Section(f"split{number}", title, name, "boxes/splits.html", content)


def _is_per_box(results: ObjectResults, metric: str) -> bool:
    """Whether a metric ignores objects; such metrics come last."""
    entry = box_metrics(results.settings).get(metric)
    return entry is not None and entry.function.__module__.startswith("oodlit.metrics.")


def _table(results: ObjectResults, split: str, names: Sequence[str]) -> dict[str, Any]:
    """The table of some metrics and of tau."""
    entries, order = box_metrics(results.settings), [*headline_metrics(results.settings), "tau"]
    names = sorted(names, key=partial(_is_per_box, results))
    groups = [_GROUPS[_is_per_box(results, name)] for name in names]
    starts = [place == groups.index(group) for place, group in enumerate(groups)]
    columns = [
        {
            "label": name,
            "explanation": meaning(name, results.settings) or TAU,
            "better": entries[name].better if name in entries else "",
            "first": first,
        }
        for name, first in zip(names, starts, strict=True)
    ]
    rows = []
    for detector, cells in headline(results, split).items():
        own = zip((cells[order.index(name)] for name in names), starts, strict=True)
        shown = [Cell(c.text, c.value, None, c.interval, c.reason, c.is_best, first=first) for c, first in own]
        rows.append({"detector": detector, "cells": shown})
    return {
        "sets": [
            {"name": name, "detail": detail, "columns": number} for (name, detail), number in Counter(groups).items()
        ],
        "columns": columns,
        "rows": rows,
        "sorted_by": names.index("ap_u") if "ap_u" in names else -1,
        "is_roomy": True,
    }
