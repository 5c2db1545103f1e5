"""Detectors that are not distinguishable from the best one, paired over images."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.metrics.uncertainty.intervals import check_confidence
from oodlit.metrics.uncertainty.paired import ImageParts, auroc_parts, below_the_best, fpr_parts, in_group_of_best
from oodlit.results.glossary import MEAN
from oodlit.results.info import DatasetInfo
from oodlit.results.run_results import RunResults

_ID_AUROC = "id_auroc"


def group_of_best(
    results: RunResults, datasets: str | Sequence[str], metric: str | None = None, *, confidence: float | None = None
) -> pd.DataFrame:
    """Rank the detectors and mark those that are not distinguishable from the best on these images.

    Every detector is compared with the best one on the same images. The standard error of a difference covers the
    images of every class and, for the FPR, the effect of the ID images on the threshold. P-values are one-sided and
    corrected by Bonferroni's method, so that the truly best detector is in the group with probability `confidence` or
    more. The group answers whether other images of the same classes could change the order; `compare` answers whether
    other classes could.

    Args:
        results: The results.
        datasets: An OOD set, or several, whose values are averaged; for "id_auroc" the ID set.
        metric: The FPR of the results, "auroc" or "id_auroc"; None = the FPR. For a set with classes, the mean over
            classes.
        confidence: Probability with which the best detector is in the group; None = that of the results' intervals.

    Returns:
        One row per detector, the best first: `detector, value, difference, p_value, p_corrected, in_group`. The
        difference is to the best; equal values keep the order of the results. Detectors without a value come last,
        with NaN.

    Raises:
        UnknownNameError: The data set or the metric is unknown.
        InvalidArgumentError: A data set has another role or no images, no data set is named, or there is no detector.
    """
    confidence = check_confidence(results.settings.confidence if confidence is None else confidence)
    names = [datasets] if isinstance(datasets, str) else list(dict.fromkeys(datasets))
    wanted = (metric or results.settings.fpr_name).removeprefix(MEAN)
    allowed = (results.settings.fpr_name, "auroc", _ID_AUROC)
    UnknownNameError.check("metric of group_of_best", wanted, allowed)
    infos = [results.dataset(name) for name in names]
    role = Role.ID if wanted == _ID_AUROC else Role.OOD
    if not infos or any(info.role is not role for info in infos):
        roles = ", ".join(f"{info.name} has role {info.role}" for info in infos) or "no data set given"
        raise InvalidArgumentError(f"group_of_best: {roles}; {wanted} requires sets with role {role}")
    if not results.detectors:
        raise InvalidArgumentError("group_of_best: these results have no detector")
    return _ordered(results, _parts(results, infos, wanted), wanted, confidence)


def class_weights(rows: pd.DataFrame, *, is_grouped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return weight and class of every image for a mean over classes, or over all images without classes.

    Example:
        >>> class_weights(pd.DataFrame({"group": [3, 3, 7]}), is_grouped=True)[0].tolist()
        [0.25, 0.25, 0.5]
    """
    groups = rows["group"].to_numpy() if is_grouped else np.zeros(len(rows), dtype=np.int64)
    found, own, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return 1 / (len(found) * sizes[own]), own


def _ordered(results: RunResults, parts: ImageParts, metric: str, confidence: float) -> pd.DataFrame:
    lower = metric == results.settings.fpr_name
    values = parts.values
    if lower:  # without a threshold there is no FPR
        values = np.where([math.isnan(results.threshold(name)) for name in results.detectors], math.nan, values)
    order = np.argsort(values if lower else -values, kind="stable")  # NaN comes last
    best = int(order[0])
    defined = ~np.isnan(values)
    p_values = np.where(defined, below_the_best(parts, best, is_lower_better=lower), math.nan)
    group = np.zeros(len(values), dtype=bool)
    group[defined] = in_group_of_best(p_values[defined], confidence=confidence)
    columns = {
        "detector": list(results.detectors),
        "value": values,
        "difference": values - values[best],
        "p_value": p_values,
        "p_corrected": np.minimum(p_values * max(int(defined.sum()) - 1, 1), 1.0),
        "in_group": group,
    }
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def _parts(results: RunResults, infos: Sequence[DatasetInfo], metric: str) -> ImageParts:
    """Contributions of the images to the mean over the data sets."""
    inside = results.images(results.id_dataset.name)
    if metric == _ID_AUROC:
        known = inside[(inside["label"] >= 0) & (inside["prediction"] >= 0)]
        is_right = known["label"] == known["prediction"]
        inside, frames = known[is_right], [known[~is_right]]
    else:
        frames = [results.images(info.name) for info in infos]
    empty = [info.name for info, rows in zip(infos, frames, strict=True) if not len(rows)]
    if empty or not len(inside):
        both = "correct and wrong predictions of labeled ID images" if metric == _ID_AUROC else "ID and OOD images"
        shown, found = ", ".join(empty) or infos[0].name, f"{len(inside):,} and {0 if empty else len(frames[0]):,}"
        raise InvalidArgumentError(f"group_of_best: {metric} of {shown} requires both {both}, got {found}")
    names = list(results.detectors)
    weights: list[np.ndarray] = []
    classes: list[np.ndarray] = []
    for info, rows in zip(infos, frames, strict=True):
        of_images, own = class_weights(rows, is_grouped=bool(info.class_names) and metric != _ID_AUROC)
        weights.append(of_images / len(frames))
        classes.append(own + (int(classes[-1].max()) + 1 if classes else 0))
    id_scores = inside[names].to_numpy().T
    ood_scores = np.concatenate([rows[names].to_numpy() for rows in frames]).T
    places = np.concatenate(weights), np.concatenate(classes)
    if metric == results.settings.fpr_name:
        thresholds = np.array([results.threshold(name) for name in names])
        return fpr_parts(id_scores, ood_scores, *places, thresholds)
    return auroc_parts(id_scores, ood_scores, *places)
