"""FPR of every OOD class."""

import math
from collections.abc import Sequence

import numpy as np

from oodlit.base.roles import Role
from oodlit.results.plots.charts import Grid
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_set, estimates
from oodlit.results.run_results import RunResults
from oodlit.results.views.tables import per_class

MOST_CLASSES = 100
"""Number of classes that a figure can show legibly."""


@Plot
def fpr_per_class(
    results: RunResults,
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    metric: str | None = None,
) -> Grid:
    """FPR of every OOD class: bars with 95 % intervals for up to four detectors, a heat map for more.

    Of more than 100 classes, the figure shows the 100 with the highest values, as its title states; means are over
    all classes.

    Args:
        results: The results.
        dataset: A data set with OOD classes; None = the first.
        detectors: Which detectors, in this order; None = all, sorted by their mean over classes.
        metric: Another metric with values per class; None = the FPR.

    Returns:
        The figure; classes are sorted by their mean over detectors, hardest first.

    Raises:
        UnknownNameError: The results have no such data set or detector.
        InvalidArgumentError: No data set has OOD classes.
    """
    info = chosen_set(results, dataset, Role.OOD, classes=True)
    names = chosen_detectors(results, detectors)
    metric = metric or results.settings.fpr_name
    shares, means = (estimates(results, info.name, name) for name in (metric, f"mean_{metric}"))
    if detectors is None:
        names.sort(key=lambda name: _nan_last(means[name, ""].value))
    known = map(str, per_class(results, info.name, metric).index)
    hardness = {name: float(np.mean([shares[detector, name].value for detector in names])) for name in known}
    classes = sorted(hardness, key=lambda name: (*_nan_last(-hardness[name]), name))
    shown = f", the {MOST_CLASSES} highest of {len(classes):,} classes" if len(classes) > MOST_CLASSES else ""
    classes = classes[:MOST_CLASSES]
    return Grid(
        f"{pretty(metric)} per class of {info.name}{shown}",
        tuple(classes),
        tuple(names),
        tuple(tuple(shares[detector, name] for detector in names) for name in classes),
        tuple(means[detector, ""] for detector in names),
    )


def _nan_last(value: float) -> tuple[bool, float]:
    return math.isnan(value), value
