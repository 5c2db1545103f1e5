"""Charts as inline SVG with the colors of the page, light or dark."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from oodlit.report.headline import fpr_text
from oodlit.report.templates import TEMPLATES
from oodlit.results.plots.charts import Curves, Grid, Histogram
from oodlit.results.plots.labels import short


def interval_bars(grid: Grid, detector: str) -> Markup:
    """Draw horizontal bars from 0 to 100 %, one row per class, with intervals as whiskers.

    Args:
        grid: Shares of classes, in the order shown.
        detector: Column of the grid.

    Returns:
        An `<svg>` element; names are escaped.
    """
    column = grid.detectors.index(detector)
    bars = [
        {"name": short(name), "title": fpr_text(detector, name, row[column]), "share": row[column]}
        for name, row in zip(grid.classes, grid.cells, strict=True)
    ]
    return draw("bars.svg", bars=bars)


def score_histogram(chart: Histogram) -> Markup:
    """Draw a histogram: the ID set filled, the others as outlines, each with area 1, and the threshold.

    The data set at position i of the chart has the color `--s{i}` of the page; data sets without images are skipped.

    Returns:
        An `<svg>` element; names are escaped.
    """
    top = max((max(shares) for shares in chart.shares if shares), default=0.0) or 1.0
    return draw("histogram.svg", chart=chart, pairs=list(zip(chart.datasets, chart.shares, strict=True)), top=top)


def roc_curves(chart: Curves, colours: Mapping[int, int]) -> Markup:
    """Draw ROC curves with dots: some in the colors of the page, the others thin and gray, selectable by name.

    The figure has 840 by 380 units, with square roots of FPR and 1 - TPR; points within a third of a unit of the line
    through their neighbors are dropped.

    Args:
        chart: Shares of OOD images accepted (x) and ID images accepted (y).
        colours: Number of the color, 0 to 5, by position of the line.

    Returns:
        An `<svg>` element; names are escaped.
    """
    lines: list[dict[str, Any]] = []
    for place, line in enumerate(chart.lines):
        drawn = _on_plane(np.array(line.x), np.array(line.y))
        points = [f"{x:.1f} {y:.1f}" for x, y in drawn[simplified(drawn, 1 / 3)]]
        dots = [(f"{x:.1f}", f"{y:.1f}") for x, y in _on_plane(*np.array(line.dots).reshape(-1, 2).T)]
        lines.append({"label": line.label, "points": points, "dots": dots, "colour": colours.get(place, -1)})
    lines.sort(key=lambda line: line["colour"] >= 0)  # colored ones on top
    return draw("roc.svg", chart=chart, lines=lines)


def _on_plane(fpr: np.ndarray, tpr: np.ndarray) -> np.ndarray:
    return np.stack([46 + 840 * np.sqrt(fpr), 8 + 380 * np.sqrt(1 - tpr)], axis=1)


def simplified(points: np.ndarray, tolerance: float) -> list[int]:
    """Select points of a line so that it moves by at most a tolerance.

    Args:
        points: Coordinates, shape (n, 2).
        tolerance: Largest distance of a dropped point from the remaining line.

    Example:
        >>> simplified(np.array([[0.0, 0.0], [1.0, 0.01], [2.0, 0.0], [2.0, 5.0]]), 0.1)
        [0, 2, 3]

    References:
        Douglas, Peucker: Algorithms for the Reduction of the Number of Points. Cartographica 1973.
    """
    kept, parts = {0, len(points) - 1}, [(0, len(points) - 1)]
    while parts:
        start, end = parts.pop()
        if end - start < 2:
            continue
        along, inner = points[end] - points[start], points[start + 1 : end] - points[start]
        place = np.clip(inner @ along / max(float(along @ along), 1e-12), 0, 1)
        distances = np.hypot(*(inner - place[:, None] * along).T)
        farthest = int(distances.argmax())
        if distances[farthest] > tolerance:
            kept.add(start + 1 + farthest)
            parts += [(start, start + 1 + farthest), (start + 1 + farthest, end)]
    return sorted(kept)


def scatter(points: Mapping[str, tuple[float, float]], named: Collection[str], *, x_label: str, y_label: str) -> Markup:
    """Draw points in 0..1, on axes around them.

    Args:
        points: x and y by name.
        named: Points with a visible name; others show it under the pointer.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.

    Returns:
        An `<svg>` element; names are escaped.
    """
    x_ticks, x_at = _axis([x for x, _ in points.values()], 56.0, 870.0)
    y_ticks, y_at = _axis([y for _, y in points.values()], 340.0, 24.0)
    order = sorted(points.items(), key=lambda item: (item[0] in named, item[1]))
    at = {name: (round(x_at(x), 1), round(y_at(y), 1)) for name, (x, y) in order}
    places = _names_beside({name: place for name, place in at.items() if name in named})
    drawn = [
        {
            "title": f"{name}: {x_label} {100 * x:.1f} %, {y_label} {100 * y:.1f} %",
            "name": short(name) if name in places else "",
            "x": at[name][0],
            "y": at[name][1],
            "side": places.get(name, (1, 0))[0],
            "lift": places.get(name, (1, 0))[1],
        }
        for name, (x, y) in order
    ]
    return draw("scatter.svg", points=drawn, x_ticks=x_ticks, y_ticks=y_ticks, x_label=x_label, y_label=y_label)


def _names_beside(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[int, int]]:
    """Side and height of names beside their points, without names that would cover another one or leave the figure.

    Example:
        >>> _names_beside({"a": (100.0, 100.0), "b": (101.0, 100.0), "c": (102.0, 100.0), "right": (890.0, 50.0)})
        {'a': (1, -6), 'b': (1, 16), 'c': (-1, -6), 'right': (-1, -6)}
    """
    found: dict[str, tuple[int, int]] = {}
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in points.items():
        width = 7.0 * len(short(name))
        for side, lift in ((1, -6), (1, 16), (-1, -6), (-1, 16)):
            left, base = x + 8 if side > 0 else x - 8 - width, y + lift
            free = all(left > end or left + width < start or abs(base - other) > 13 for start, end, other in taken)
            if free and left > 0 and left + width < 900:
                found[name] = (side, lift)
                taken.append((left, left + width, base))
                break
    return found


def _axis(values: Sequence[float], start: float, end: float) -> tuple[list[dict[str, Any]], Callable[[Any], Any]]:
    """Ticks in percent at round numbers around the values, and a function from values to positions."""
    steps = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    step = next((step for step in steps if max(values) - min(values) <= 6 * step), 0.2)
    low, high = math.floor(min(values) / step + 1e-9), math.ceil(max(values) / step - 1e-9)
    low, high = (low, high) if high > low else (low - 1, high + 1)

    def at(value: Any) -> Any:
        return start + (value / step - low) / (high - low) * (end - start)

    ticks = [{"at": round(at(k * step), 1), "text": f"{100 * k * step:g} %"} for k in range(low, high + 1)]
    return ticks, at


def line_chart(chart: Curves, colours: Mapping[str, str]) -> Markup:
    """Draw lines with dots, on axes around their values; points that move a line by less than a third are dropped.

    Args:
        chart: Values in 0..1.
        colours: Names of colors of the page by label of a line.

    Returns:
        An `<svg>` element; names are escaped.
    """
    marks = np.array([point for line in chart.lines for point in (*zip(line.x, line.y, strict=True), *line.dots)])
    x_ticks, x_at = _axis(marks[:, 0].tolist(), 56.0, 880.0)
    y_ticks, y_at = _axis([*marks[:, 1], 0.0], 290.0, 10.0)
    lines = []
    for line in chart.lines:
        points = np.stack([x_at(np.array(line.x)), y_at(np.array(line.y))], axis=1)
        where = [f"{chart.x_label} {100 * x:.1f} %, {chart.y_label} {100 * y:.1f} %" for x, y in line.dots]
        lines.append(
            {
                "name": line.label,
                "title": ": ".join([line.label, *where]),
                "colour": colours[line.label],
                "points": [f"{x:.1f} {y:.1f}" for x, y in points[simplified(points, 1 / 3)]],
                "dots": [(round(x_at(x), 1), round(y_at(y), 1)) for x, y in line.dots],
            }
        )
    return draw("lines.svg", chart=chart, x_ticks=x_ticks, y_ticks=y_ticks, lines=lines[::-1])  # the first on top


def draw(template: str, **content: Any) -> Markup:
    """Render a template of `html` as one line of SVG; values are escaped."""
    return Markup(TEMPLATES.get_template(template).render(**content).replace("\n", " "))  # rendering escapes values


def level_curves(chart: Curves, colours: Mapping[str, str]) -> Markup:
    """Draw curves over the levels of a pool: some in the colors of the page, the others gray, with bands behind them.

    Args:
        chart: Values in 0..1; the ticks are the levels.
        colours: Names of colors of the page by label of a line.

    Returns:
        An `<svg>` element; names are escaped.
    """
    steps, span = max(len(chart.ticks) - 1, 1), max(1 - chart.bottom, 1e-9)

    def place(x: float, y: float) -> str:
        return f"{46 + x / steps * 844:.1f} {8 + (1 - y) / span * 298:.1f}"

    grid = 0.1 if 1 - chart.bottom <= 0.5 else 0.2
    heights = [1 - number * grid for number in range(math.floor((1 - chart.bottom) / grid + 1e-9) + 1)]
    bands = []
    for band in chart.bands:
        upper, lower = ([place(x, y) for x, y in zip(band.x, side, strict=True)] for side in (band.high, band.low))
        bands.append((band.label, [*upper, *reversed(lower)]))
    grey, coloured = ([line for line in chart.lines if (line.label in colours) is wanted] for wanted in (False, True))
    lines = [
        (line.label, [place(x, y) for x, y in zip(line.x, line.y, strict=True) if not math.isnan(y)])
        for line in [*grey, *reversed(coloured)]  # the best on top
    ]
    return draw("levels.svg", chart=chart, colours=colours, place=place, heights=heights, bands=bands, lines=lines)
