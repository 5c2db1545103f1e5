"""Charts as matplotlib figures."""

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from oodlit.results.plots.charts import Chart, Curves, Grid, Histogram, Histograms, Matrix
from oodlit.results.plots.labels import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with every common colour blindness; yellow is left out (unreadable on white).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")
_MAX_BARS = 4
"""With more detectors, bars per class become a table of colors."""


@singledispatch
def draw(chart: Chart) -> Figure:
    """Draw a chart as a matplotlib figure."""
    raise TypeError(f"cannot draw a {type(chart).__name__}")


@draw.register
def _(chart: Grid) -> Figure:
    return _bars(chart) if chart.limit is None and len(chart.detectors) <= _MAX_BARS else _heat_map(chart)


@draw.register
def _(chart: Curves) -> Figure:
    figure, axes = _new_figure((7.2, max(4.4, 1.0 + 0.17 * len(chart.lines))))
    for index, band in enumerate(chart.bands):
        axes.fill_between(
            band.x, band.low, band.high, color="0.5", alpha=0.15 + 0.12 * index, linewidth=0, label=_shown(band.label)
        )
    for index, line in enumerate(chart.lines):
        colour, turn = _COLOURS[index % len(_COLOURS)], index // len(_COLOURS)
        marker = _MARKERS[turn % len(_MARKERS)] if line.dots else ""
        axes.plot(
            line.x, line.y, color=colour, linestyle=_STYLES[turn % len(_STYLES)], linewidth=1.3,
            drawstyle="steps-post" if chart.steps else "default", label=_shown(line.label),
            marker=marker, markersize=5.5, markeredgecolor="white", markevery=[],
        )  # fmt: skip
        for x, y in line.dots:
            axes.plot(x, y, marker=marker, markersize=5.5, markeredgecolor="white", color=colour)
    if chart.level is not None:
        axes.axhline(chart.level, color="0.6", linewidth=0.7, zorder=0)
    if chart.near_zero:
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.clip(x, 0, None)), np.square))
        axes.set_xticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set(ylim=(chart.bottom, None))
    if chart.whole:
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
    for x, name in chart.names:
        axes.annotate(
            _shown(name), (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
            rotation=35, fontsize=7, ha="left", va="bottom",
        )  # fmt: skip
    axes.set(xlabel=_shown(chart.x_label), ylabel=_shown(chart.y_label))
    if chart.ticks:
        axes.set_xticks([x for x, _ in chart.ticks], [_shown(text) for _, text in chart.ticks])
    else:
        axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_title(_shown(chart.title), loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False, title=chart.legend or None, alignment="left")
    return figure


@draw.register
def _(chart: Histograms) -> Figure:
    columns = min(4, len(chart.panels))
    lines = -(-len(chart.panels) // columns)
    figure = Figure(figsize=(2.5 * columns + 0.4, 1.85 * lines + 0.8), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flat
    for axes, panel in zip(places, chart.panels, strict=False):
        _histogram(axes, panel)
    for axes in places[len(chart.panels) :]:
        axes.set_axis_off()
    handles, labels = places[0].get_legend_handles_labels()
    fitting = int(14 * figure.get_figwidth()) // (max(map(len, labels)) + 8)  # of about 14 characters per inch
    ncols = min(max(fitting, 1), len(labels))
    figure.legend(handles, labels, loc="outside upper left", ncols=ncols, fontsize=8, frameon=False)
    return figure


def _histogram(axes: "Axes", panel: Histogram) -> None:
    for index, (name, shares) in enumerate(zip(panel.datasets, panel.shares, strict=True)):
        kind = "OOD" if index else "ID"
        axes.stairs(
            shares, np.linspace(0.0, 1.0, len(shares) + 1), fill=not index, alpha=1.0 if index else 0.5,
            color=_COLOURS[index % len(_COLOURS)], linewidth=1.2, label=f"{kind} ({_shown(name)})",
        )  # fmt: skip
    if not np.isnan(panel.position):
        axes.axvline(panel.position, color="black", linewidth=1, linestyle="--", label="threshold")
    accepted = ", ".join(f"{100 * share:.1f} %" for share in panel.accepted[1:])
    axes.set_title(f"{_shown(panel.detector)}\n{accepted} of OOD accepted", fontsize=7.5, loc="left")
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], panel.labels)
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.tick_params(labelsize=6.5, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bars(chart: Grid) -> Figure:
    labels = [f"{_shown(short(name))}  ({n})" for name, n in zip(chart.classes, chart.sizes, strict=True)]
    height = 0.9 + 0.17 * len(labels) * max(1.0, 0.5 * len(chart.detectors))
    figure, axes = _new_figure((7.2, height))
    thickness = 0.8 / len(chart.detectors)
    for index, (name, total) in enumerate(zip(chart.detectors, chart.totals, strict=True)):
        y = np.arange(len(labels)) + (index - (len(chart.detectors) - 1) / 2) * thickness
        value, low, high = (np.array(numbers) for numbers in zip(*(row[index][:3] for row in chart.cells), strict=True))
        label = f"{_shown(name)}  (mean {100 * total.value:.1f} %)"
        axes.barh(y, value, thickness * 0.92, color=_COLOURS[index], label=label)
        low, high = np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high)
        # An interval that does not hold its value (Wilson at 0 and 1 touches it) would be a negative length.
        error = np.clip([value - low, high - value], 0, None)
        axes.errorbar(value, y, xerr=error, fmt="none", ecolor="0.25", elinewidth=0.7)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set(xlim=(0, 1), ylim=(len(labels) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(_shown(chart.title), loc="left", fontsize=10)
    if len(chart.detectors) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    return figure


def _heat_map(chart: Grid) -> Figure:
    """Detectors as rows; every cell has its value in percent."""
    width, height = 1.9 + 0.25 * len(chart.classes), 1.7 + 0.24 * len(chart.detectors)
    figure, axes = _new_figure((max(width, 5.0), height))
    shares = np.array([[cell.value for cell in row] for row in chart.cells]).T
    colours: dict[str, Any] = {"cmap": "viridis_r", "vmin": 0, "vmax": 1}
    if chart.limit is not None and 0 < chart.limit < 1:
        colours = {"cmap": "RdBu_r", "norm": TwoSlopeNorm(chart.limit, 0, 1)}
    image = axes.imshow(shares, aspect="auto", **colours)
    for (i, j), share in np.ndenumerate(shares):
        text = "-" if np.isnan(share) else f"{100 * share:.0f}"
        red, green, blue, _ = image.to_rgba(share)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(j, i, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    totals = [f"mean {100 * t.value:.1f}" if chart.limit is None else f"{t.value:g} failed" for t in chart.totals]
    rows = [f"{_shown(name)}  ({total})" for name, total in zip(chart.detectors, totals, strict=True)]
    columns = [f"{_shown(short(name))}  ({n})" for name, n in zip(chart.classes, chart.sizes, strict=True)]
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"{_shown(chart.title)} (percent)", x=0.01, ha="left", fontsize=10)
    return figure


@draw.register
def _(chart: Matrix) -> Figure:
    side = 2.2 + 0.36 * len(chart.names)
    figure, axes = _new_figure((side, side))
    cells = np.array(chart.cells)
    image = axes.imshow(cells, cmap="RdBu", vmin=-1, vmax=1)
    for (i, j), value in np.ndenumerate(cells):
        text = "?" if np.isnan(value) else f"{value:.2f}"
        axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if abs(value) > 0.7 else "black")
    labels = [_shown(name) for name in chart.names]
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(_shown(chart.title), loc="left", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7)
    return figure


def _new_figure(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    """A figure of `size` inches with one pair of axes."""
    # Figure() instead of pyplot: no global state, nothing to close, no display needed.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _shown(name: str) -> str:
    r"""Escape a name for figures: dollars would start a formula, and legends leave out names with a leading "_".

    Example:
        >>> _shown("_msp $1$")
        ' _msp \\$1\\$'
    """
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
