"""ROC curves with the operating point."""

from collections.abc import Sequence

import numpy as np

from oodlit.results.plots.charts import Curves, Line
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, id_and_ood_images
from oodlit.results.run_results import RunResults


@Plot
def roc(
    results: RunResults,
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    ood_class: str | None = None,
) -> Curves:
    """ROC curves, ID positive, with the operating point of the FPR.

    Args:
        results: The results.
        dataset: An OOD set; None = the first. Its images are pooled over classes.
        detectors: Names of detectors; None = all.
        ood_class: One class of the data set; None = all images.

    Returns:
        The figure: share of OOD accepted (x, square-root scale) against share of ID accepted (y).

    Raises:
        UnknownNameError: The results have no such data set, class or detector.
        InvalidArgumentError: There is no OOD set, or no image.
    """
    info, inside, ood = id_and_ood_images(results, dataset, ood_class)
    lines = []
    for name in chosen_detectors(results, detectors):
        fpr, tpr = roc_points(inside[name].to_numpy(), ood[name].to_numpy())
        threshold = results.threshold(name)
        dot = float((ood[name] >= threshold).mean()), float((inside[name] >= threshold).mean())
        lines.append(Line(name, tuple(fpr.tolist()), tuple(tpr.tolist()), (dot,)))
    return Curves(
        f"ROC of {info.name}{f', {ood_class}' if ood_class else ''}: dots at {100 * results.settings.tpr:g} % TPR",
        "OOD images accepted (FPR)",
        "ID images accepted (TPR)",
        tuple(lines),
        near_zero=True,
        level=results.settings.tpr,
    )


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
