"""Choose the figures of a run to log, and convert them to pictures."""

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from PIL import Image

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import Results
from oodlit.results.displayed import displayed
from oodlit.results.names import distinct, safe
from oodlit.results.plots import FIGURES
from oodlit.results.plots.charts import Chart
from oodlit.results.plots.drawing import draw
from oodlit.runs.loggers.run_log import Figures

HEADLINE = ("score_histograms", "fpr_per_class", "unit_tests", "severity_curve")
"""Figures drawn by default, for every data set that they can show."""

DOTS_PER_INCH = 110
LONGEST = 100
"""Characters to replace in the name of a data set, since loggers use names of figures as file names."""


def check_figures(owner: str, chosen: object) -> None:
    """Check the names of the figures to log.

    Raises:
        InvalidArgumentError: It is neither a list of names nor True or False.
        UnknownNameError: There is no such figure.

    Example:
        >>> check_figures("OODDetection", ["roc"])
    """
    if isinstance(chosen, bool):
        return
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise InvalidArgumentError(
            f"{owner}: expected log_figures to be True, False or a list of names of figures, got {chosen!r}"
        )
    for name in chosen:
        UnknownNameError.check("figure", str(name), FIGURES)


def figures_of(results: Results, chosen: bool | Sequence[str]) -> Figures:
    """Functions that draw the chosen figures, by `<figure>/<dataset>`, for every data set that a figure can show.

    The names fit every file system: long ones are cut, and those that differ in case alone get `_2`, `_3`, ...

    Args:
        results: A run.
        chosen: Names of figures; True = the headline, of which those are left out that this run has nothing for.

    Returns:
        Functions that draw one figure each. The one of a figure that was named and shows no data set raises
        `InvalidArgumentError` with the reason.
    """
    names = list(chosen) if not isinstance(chosen, bool) else list(HEADLINE) if chosen else []
    drawing: dict[str, Callable[[], Image.Image]] = {}
    for figure in names:
        charts = _charts(results, figure)
        parts = distinct((safe(name)[:LONGEST] for name in charts), same=str.casefold)
        drawing |= {
            f"{figure}/{part}": partial(_picture, chart) for part, chart in zip(parts, charts.values(), strict=True)
        }
        if not charts and chosen is not True:
            drawing[figure] = partial(FIGURES[figure].describe, results)  # says what it needs
    return drawing


def _charts(results: Results, figure: str) -> dict[str, Chart]:
    """Contents of a figure for each data set that it can show."""
    charts: dict[str, Chart] = {}
    for info in results.datasets:
        with suppress(InvalidArgumentError):  # another role, no classes, no image
            charts[info.name] = FIGURES[figure].describe(displayed(results), info.name)
    return charts


def _picture(chart: Chart) -> Image.Image:
    file = io.BytesIO()
    draw(chart).savefig(file, format="png", dpi=DOTS_PER_INCH)
    with Image.open(file) as picture:
        return picture.convert("RGB")
