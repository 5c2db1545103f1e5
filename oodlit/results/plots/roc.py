"""ROC curves with the operating point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from oodlit.results.plots.select import chosen_detectors, samples
from oodlit.results.plots.style import colour_of, new_figure, percent_axes, shown, style_of

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["roc", "roc_points"]


def roc(
    results: "Results",
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    ood_class: str | None = None,
) -> Figure:
    """ROC curves, ID positive, with the operating point of the FPR.

    Args:
        results: The results.
        dataset: An OOD set; None = the first. Its images are pooled over classes.
        detectors: Which detectors; None = all.
        ood_class: One class of the data set; None = all images.

    Returns:
        The figure: share of OOD accepted (x, square-root scale) against share of ID accepted (y).

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There is no OOD set, or no image.
    """
    info, id_scores, ood_scores = samples(results, dataset, ood_class)
    names = chosen_detectors(results, detectors)
    figure, axes = new_figure((7.2, max(4.4, 1.0 + 0.17 * len(names))))
    for index, name in enumerate(names):
        fpr, tpr = roc_points(id_scores[name].to_numpy(), ood_scores[name].to_numpy())
        threshold = results.run["thresholds"][name][results.settings.fpr_name]
        point = tuple(float((s[name] >= threshold).mean()) for s in (ood_scores, id_scores))
        axes.plot(fpr, tpr, color=colour_of(index), linestyle=style_of(index), linewidth=1.3, label=shown(name))
        axes.plot(*point, marker="o", color=colour_of(index), markersize=4.5, markeredgecolor="white")
    axes.axhline(results.settings.tpr, color="0.6", linewidth=0.7, zorder=0)
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.clip(x, 0, None)), np.square))
    axes.set_xticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="OOD images accepted (FPR)", ylabel="ID images accepted (TPR)")
    percent_axes(axes)
    of = shown(f"{info.name}, {ood_class}" if ood_class else info.name)
    axes.set_title(f"ROC of {of}: dots at {100 * results.settings.tpr:g} % TPR", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return figure


def roc_points(id_scores: np.ndarray, ood_scores: np.ndarray, *, limit: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """FPR and TPR at the distinct scores, from (0, 0) to (1, 1); thinned evenly to at most about `limit` points.

    Example:
        >>> fpr, tpr = roc_points(np.array([3.0, 2.0]), np.array([2.0, 1.0]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    thresholds = np.unique(np.concatenate([id_scores, ood_scores]))[::-1]
    if len(thresholds) > limit:
        thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, limit).astype(int))]
    shares = [
        np.concatenate([[0.0], 1 - np.searchsorted(np.sort(s), thresholds, side="left") / len(s)])
        for s in (ood_scores, id_scores)
    ]
    return shares[0], shares[1]
