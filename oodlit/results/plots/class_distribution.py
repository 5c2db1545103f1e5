"""How the FPR is distributed over OOD classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from oodlit.results.plots.select import chosen_detectors, grouped_set
from oodlit.results.plots.style import colour_of, new_figure, percent_axes, pretty, shown, style_of
from oodlit.roles import Role

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["class_distribution"]


def class_distribution(
    results: "Results", dataset: str | None = None, *, detectors: Sequence[str] | None = None
) -> Figure:
    """Share of OOD classes whose FPR is at most x; the area above a curve is the mean FPR.

    Args:
        results: The results.
        dataset: A data set with OOD classes; None = the first.
        detectors: Which detectors; None = all. The legend is sorted by mean FPR, best first.

    Returns:
        The figure.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: No data set has OOD classes.
    """
    info = grouped_set(results, dataset, Role.OOD)
    values = results.per_class(info.name)
    means = values[chosen_detectors(results, detectors)].mean().sort_values(kind="stable")
    figure, axes = new_figure((7.2, max(4.2, 1.0 + 0.17 * len(means))))
    for index, (name, mean) in enumerate(means.items()):
        x = np.sort(values[name].dropna().to_numpy())
        share = np.arange(1, len(x) + 1) / len(x)
        axes.step(
            np.concatenate([[0], x, [1]]),
            np.concatenate([[0], share, [1]]),
            where="post",
            color=colour_of(index),
            linestyle=style_of(index),
            linewidth=1.4,
            label=f"{100 * mean:5.1f} %  {shown(str(name))}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel=f"{pretty(results.settings.fpr_name)} of a class at most")
    axes.set_ylabel(f"share of the {len(values)} classes")
    percent_axes(axes)
    axes.set_title(f"OOD classes of {shown(info.name)}: area above the curve = mean FPR", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False, title="mean FPR", alignment="left")
    return figure
