"""FPR of every OOD class."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oodlit.results.plots.charts import Grid
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_set, class_grid
from oodlit.results.run_results import RunResults
from oodlit.roles import Role

__all__ = ["fpr_per_class"]


@Plot
def fpr_per_class(
    results: RunResults,
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    metric: str | None = None,
) -> Grid:
    """FPR of every OOD class: bars with 95 % intervals for up to four detectors, a heat map for more.

    Args:
        results: The results.
        dataset: A data set with OOD classes; None = the first.
        detectors: Which detectors, in this order; None = all, sorted by their mean over classes.
        metric: Another metric with values per class; None = the FPR.

    Returns:
        The figure; classes are sorted by their mean over detectors, hardest first.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: No data set has OOD classes.
    """
    info = chosen_set(results, dataset, Role.OOD, classes=True)
    names = chosen_detectors(results, detectors)
    metric = metric or results.settings.fpr_name
    title = f"{pretty(metric)} per class of {info.name}"
    grid = class_grid(results, info, names, metric, totals=f"mean_{metric}", title=title)
    columns = list(range(len(names)))
    if detectors is None:
        columns.sort(key=lambda column: _nan_last(grid.totals[column].value))
    means = [float(np.mean([row[column].value for column in columns])) for row in grid.cells]
    rows = sorted(range(len(means)), key=lambda row: (*_nan_last(-means[row]), grid.classes[row]))
    return replace(
        grid,
        classes=tuple(grid.classes[row] for row in rows),
        detectors=tuple(grid.detectors[column] for column in columns),
        cells=tuple(tuple(grid.cells[row][column] for column in columns) for row in rows),
        totals=tuple(grid.totals[column] for column in columns),
    )


def _nan_last(value: float) -> tuple[bool, float]:
    return math.isnan(value), value
