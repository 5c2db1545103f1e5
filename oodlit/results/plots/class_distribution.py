"""Distribution of the FPR over OOD classes."""

from collections.abc import Sequence

import numpy as np

from oodlit.base.roles import Role
from oodlit.results.plots.charts import Curves, Line
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_set
from oodlit.results.run_results import RunResults
from oodlit.results.views.tables import per_class


@Plot
def class_distribution(
    results: RunResults, dataset: str | None = None, *, detectors: Sequence[str] | None = None
) -> Curves:
    """Share of OOD classes whose FPR is at most x; the area above a curve is the mean FPR.

    Args:
        results: The results.
        dataset: A data set with OOD classes; None = the first.
        detectors: Names of detectors; None = all. The legend is sorted by mean FPR, best first.

    Returns:
        The figure.

    Raises:
        UnknownNameError: The results have no such data set or detector.
        InvalidArgumentError: No data set has OOD classes.
    """
    info = chosen_set(results, dataset, Role.OOD, classes=True)
    values = per_class(results, info.name)
    means = values[chosen_detectors(results, detectors)].mean().sort_values(kind="stable")
    lines = []
    for name, mean in means.items():
        x = np.sort(values[name].dropna().to_numpy()).tolist()
        share = (np.arange(1, len(x) + 1) / len(x)).tolist()
        lines.append(Line(f"{100 * mean:5.1f} %  {name}", (0.0, *x, 1.0), (0.0, *share, 1.0)))
    return Curves(
        f"OOD classes of {info.name}: area above the curve = mean FPR",
        f"{pretty(results.settings.fpr_name)} of a class",
        f"share of the {len(values)} classes with at most this FPR",
        tuple(lines),
        legend="mean FPR",
        steps=True,
    )
