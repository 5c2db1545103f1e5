"""Histograms of scores with the acceptance threshold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from oodlit.errors import InvalidArgumentError
from oodlit.results.plots.select import chosen_detectors, samples
from oodlit.results.plots.style import COLOURS, shown

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["score_histograms"]


def score_histograms(
    results: "Results", dataset: str | None = None, *, detectors: Sequence[str] | None = None, bins: int = 50
) -> Figure:
    """Histograms of ID and OOD scores with the acceptance threshold, one panel per detector.

    Scores beyond the outermost 0.5 percent of both groups are drawn in the outermost bins, infinities included.

    Args:
        results: The results.
        dataset: An OOD set; None = the first.
        detectors: Which detectors; None = all.
        bins: Number of bins.

    Returns:
        The figure.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There is no OOD set, no image, no detector or no bin.
    """
    if bins < 1:
        raise InvalidArgumentError(f"score_histograms: bins={bins}; at least one is needed")
    info, id_scores, ood_scores = samples(results, dataset, None)
    names = chosen_detectors(results, detectors)
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(2.5 * columns + 0.4, 1.75 * lines + 0.8), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for index, axes in enumerate(panels.flat):
        if index >= len(names):
            axes.set_axis_off()
            continue
        name = names[index]
        parts = [s[name].to_numpy(dtype=np.float64) for s in (id_scores, ood_scores)]
        low, high = _span(parts)
        edges = np.linspace(low, high, bins + 1)
        for values, colour, label in zip(parts, COLOURS, ("ID", f"OOD ({shown(info.name)})"), strict=False):
            inside = np.clip(values, low, high)
            weights = np.full(len(inside), 1 / len(inside))
            axes.hist(inside, edges, weights=weights, color=colour, alpha=0.6, label=label, linewidth=0)
        threshold = results.run["thresholds"][name][results.settings.fpr_name]
        axes.axvline(np.clip(threshold, low, high), color="black", linewidth=1, label="threshold")
        accepted = float((ood_scores[name] >= threshold).mean())
        axes.set_title(f"{shown(name)}   {100 * accepted:.1f} % of OOD accepted", fontsize=7.5, loc="left")
        axes.set_yticks([])
        axes.tick_params(labelsize=6.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    return figure


def _span(groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """From the smallest 0.5 percentile to the largest 99.5 percentile of the groups' finite values."""
    ends = [np.quantile(v[np.isfinite(v)], [0.005, 0.995]) for v in groups if np.isfinite(v).any()]
    if not ends:
        return 0.0, 1.0
    low, high = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    return (low, high) if high > low else (low - 0.5, high + 0.5)
