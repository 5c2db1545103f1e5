"""A figure with a separate description of its content."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from matplotlib.figure import Figure

from oodlit.results.display_names import display_names
from oodlit.results.displayed import displayed
from oodlit.results.plots.charts import Chart
from oodlit.results.plots.drawing import draw
from oodlit.results.run_results import RunResults

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
        """Draw the chart that `describe` returns for the same arguments, with the display names of detectors."""
        names: dict[str, str] = {}
        given = [_displayed(argument, names) for argument in args]
        chosen = options.get("detectors")
        if isinstance(chosen, list | tuple):
            options["detectors"] = [names.get(name, name) for name in chosen]
        return draw(self.describe(*given, **options))


def _displayed(argument: Any, names: dict[str, str]) -> Any:
    """Results with the display names of detectors, which are added to `names`; other arguments as they are."""
    if isinstance(argument, list | tuple):
        return [_displayed(one, names) for one in argument]
    if not isinstance(argument, RunResults):
        return argument
    names.update(display_names(argument.run))
    return displayed(argument)
