"""How all figures look: colours, axes, texts."""

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "MARKERS", "colour_of", "new_figure", "percent_axes", "pretty", "short", "shown", "style_of"]

# Okabe and Ito's colours, told apart with every common colour blindness; yellow is left out (unreadable on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D")
_STYLES = ("-", "--", ":", "-.")


def new_figure(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    """A figure of `size` inches with one pair of axes."""
    # Figure() instead of pyplot: no global state, nothing to close, no display needed.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def percent_axes(axes: "Axes") -> None:
    """Label both axes in percent."""
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color="0.92", linewidth=0.6)


def shown(name: str) -> str:
    r"""A name as figures show it: no formula between dollars, and kept in legends, which leave out a leading "_".

    Example:
        >>> shown("_msp $1$")
        ' _msp \\$1\\$'
    """
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def short(name: str, length: int = 28) -> str:
    """At most `length` characters of a name."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def pretty(metric: str) -> str:
    """`mean_fpr95` as `mean FPR@95`."""
    text = metric.replace("_", " ")
    for name in ("fpr", "der"):
        text = text.replace(name, f"{name.upper()}@")
    return text.replace("auroc", "AUROC")


def colour_of(index: int) -> str:
    """Colour of the detector at a position."""
    return COLOURS[index % len(COLOURS)]


def style_of(index: int) -> str:
    """Line style of the detector at a position; changes when the colours repeat."""
    return _STYLES[index // len(COLOURS) % len(_STYLES)]
