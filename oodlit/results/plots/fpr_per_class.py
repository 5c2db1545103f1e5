"""FPR of every OOD class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from oodlit.results.info import DatasetInfo
from oodlit.results.plots.heat_map import heat_map
from oodlit.results.plots.select import chosen_detectors, grouped_set
from oodlit.results.plots.style import colour_of, new_figure, pretty, short, shown
from oodlit.roles import Role

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["fpr_per_class"]

_MAX_BARS = 4
"""With more detectors than this, bars per class become a heat map."""


def fpr_per_class(
    results: "Results", dataset: str | None = None, *, detectors: Sequence[str] | None = None, metric: str | None = None
) -> Figure:
    """FPR of every OOD class: bars with 95 % intervals for up to four detectors, a heat map for more.

    Args:
        results: The results.
        dataset: A data set with OOD classes; None = the first.
        detectors: Which detectors, in this order; None = all.
        metric: Another metric with values per class; None = the FPR.

    Returns:
        The figure; classes are sorted by their mean over detectors, hardest first.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: No data set has OOD classes.
    """
    info = grouped_set(results, dataset, Role.OOD)
    names = chosen_detectors(results, detectors)
    metric = metric or results.settings.fpr_name
    values = results.per_class(info.name, metric)
    counts = values.pop("n")
    values = values[names]
    values = values.loc[values.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    labels = [f"{shown(short(str(name)))}  ({counts[name]})" for name in values.index]
    title = f"{pretty(metric)} per class of {shown(info.name)}"
    if len(names) > _MAX_BARS:
        means = values.mean().sort_values(kind="stable")
        titles = [f"{shown(str(name))}  (mean {100 * mean:.1f})" for name, mean in means.items()]
        return heat_map(values[list(means.index)].T, titles, labels, title)
    height = 0.9 + 0.17 * len(labels) * max(1.0, 0.5 * len(names))
    figure, axes = new_figure((7.2, height))
    table = results.table[(results.table["dataset"] == info.name) & (results.table["metric"] == metric)]
    thickness = 0.8 / len(names)
    for index, name in enumerate(names):
        rows = table[table["detector"] == name].set_index("ood_class").loc[values.index]
        y = np.arange(len(labels)) + (index - (len(names) - 1) / 2) * thickness
        value = rows["value"].to_numpy()
        axes.barh(y, value, thickness * 0.92, color=colour_of(index), label=_with_mean(results, info, name, metric))
        low, high = (rows[end].fillna(rows["value"]).to_numpy() for end in ("ci_low", "ci_high"))
        # An interval that does not hold its value (Wilson at 0 and 1 touches it) would be a negative length.
        error = np.clip([value - low, high - value], 0, None)
        axes.errorbar(value, y, xerr=error, fmt="none", ecolor="0.25", elinewidth=0.7)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10)
    if len(names) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    return figure


def _with_mean(results: "Results", info: DatasetInfo, detector: str, metric: str) -> str:
    mean = results.value(f"mean_{metric}", dataset=info.name, detector=detector)
    return f"{shown(detector)}  (mean {100 * mean:.1f} %)"
