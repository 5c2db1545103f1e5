"""A figure by what it shows."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from oodlit.results.plots.charts import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Plot"]

P = ParamSpec("P")
ChartT = TypeVar("ChartT", bound=Chart)


class Plot(Generic[P, ChartT]):
    """A figure of results: `plot(results)` is drawn by matplotlib, `plot.describe(results)` is what it shows.

    Args:
        describe: A function from results and options to a chart: no drawing, plain numbers and labels.
    """

    def __init__(self, describe: Callable[P, ChartT]) -> None:
        self.describe = describe
        functools.update_wrapper(self, describe)

    def __call__(self, *args: P.args, **options: P.kwargs) -> "Figure":
        """What `describe` tells of the same arguments, drawn."""
        drawing = import_module("oodlit.results.plots.drawing")  # matplotlib is loaded only for a figure
        figure: Figure = drawing.draw(self.describe(*args, **options))
        return figure
