"""A figure with a separate description of its content."""

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from matplotlib.figure import Figure

from oodlit.results.plots.charts import Chart
from oodlit.results.plots.drawing import draw

P = ParamSpec("P")
ChartT = TypeVar("ChartT", bound=Chart)


class Plot(Generic[P, ChartT]):
    """A figure of results: `plot(results)` draws it, `plot.describe(results)` returns its content.

    Args:
        describe: A function from results and options to a chart: no drawing, plain numbers and labels.
    """

    def __init__(self, describe: Callable[P, ChartT]) -> None:
        self.describe = describe
        functools.update_wrapper(self, describe)

    def __call__(self, *args: P.args, **options: P.kwargs) -> Figure:
        """Draw the chart that `describe` returns for the same arguments."""
        return draw(self.describe(*args, **options))
