"""Charts as inline SVG of the HTML page: they take the page's colours, light or dark, and stay sharp."""

from typing import Any

from markupsafe import Markup

from oodlit.report.headline import fpr_text
from oodlit.report.templates import TEMPLATES
from oodlit.results.plots.charts import Grid, Histogram
from oodlit.results.plots.labels import short


def interval_bars(grid: Grid, detector: str) -> Markup:
    """Horizontal bars from 0 to 100 %, one row per class, with intervals as whiskers.

    Args:
        grid: Shares of classes, in the order shown, any number.
        detector: The column to show.

    Returns:
        An `<svg>` element; names are escaped.
    """
    column = grid.detectors.index(detector)
    bars = [
        {"name": short(name), "title": fpr_text(detector, name, row[column]), "share": row[column]}
        for name, row in zip(grid.classes, grid.cells, strict=True)
    ]
    return _drawn("bars.svg", bars=bars)


def score_histogram(chart: Histogram) -> Markup:
    """The ID set filled, the others as outlines, each with area 1, and the threshold.

    The data set at position i of the chart has the colour `--s{i}` of the page; one without images is left out.

    Returns:
        An `<svg>` element; names are escaped.
    """
    top = max((max(shares) for shares in chart.shares if shares), default=0.0) or 1.0
    return _drawn("histogram.svg", chart=chart, pairs=list(zip(chart.datasets, chart.shares, strict=True)), top=top)


def _drawn(template: str, **content: Any) -> Markup:
    text = TEMPLATES.get_template(template).render(**content)  # escapes what it is given
    return Markup(text.replace("\n", " "))
