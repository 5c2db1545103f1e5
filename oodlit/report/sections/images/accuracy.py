"""Accuracy of networks versus FPR of detectors."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from oodlit.report.section import Section
from oodlit.report.several import Several
from oodlit.report.svg import scatter
from oodlit.results import RunColumn

_ALL_NAMES = 10
"""With more runs, only those that no other run beats in both values have a visible name."""


def sections(several: Several) -> Iterator[Section]:
    """Yield one section, if the runs have accuracies and a comparable FPR."""
    accuracies = {title: several.quality_of(title) for title in several.runs}
    known = {title: value for title, value in accuracies.items() if not math.isnan(value)}
    columns = [column for column in several.like if "fpr" in column.metric]
    if len(known) > 1 and columns:
        charts = [chart for column in columns for chart in _charts(several, column, known)]
        content = {"charts": charts, "without": [title for title in accuracies if title not in known]}
        yield Section("accuracy", "Do better networks have better detectors?", "accuracy", "accuracy.html", content)


def _charts(several: Several, column: RunColumn, accuracies: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    values = several.values(column)
    label = several.label(column)
    choices = {"the best detector of each run": values.min(axis="columns")}
    choices |= {str(name): values[name] for name in values.columns}
    for name, of in choices.items():
        if points := {t: (a, float(of[t])) for t, a in accuracies.items() if not math.isnan(float(of[t]))}:
            yield {"name": f"{label}, {name}", "svg": _drawn(points, label)}


def _drawn(points: Mapping[str, tuple[float, float]], label: str) -> Markup:
    named = {
        title
        for title, (accuracy, fpr) in points.items()
        if len(points) <= _ALL_NAMES
        or not any(a >= accuracy and f <= fpr and (a, f) != (accuracy, fpr) for a, f in points.values())
    }
    return scatter(points, named, x_label="accuracy", y_label=label)
