"""Intervals of means over OOD classes and of pooled values, by the stratified bootstrap."""

import zlib
from collections.abc import Sequence

import numpy as np

from oodlit.metrics.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.results.evaluation.parts import Part, Parts
from oodlit.results.evaluation.rows import Place, Rows

__all__ = ["add_mean_intervals"]


def add_mean_intervals(parts: Parts, part: Part, detectors: Sequence[str], rows: Rows) -> None:
    """Give intervals to the means and pooled values of one OOD set with classes, for all detectors at once.

    Nothing is done without bootstrap, classes or ID images, or if a class is empty.
    """
    settings, info = parts.settings, part.info
    groups = parts.groups(info)
    if not (settings.bootstrap and detectors and groups and len(parts.id)):
        return
    code = np.full(len(info.class_names), -1)
    code[[group for group, _ in groups]] = np.arange(len(groups))
    codes = code[part.groups]
    keep = np.flatnonzero(codes >= 0)
    sizes = np.bincount(codes[keep], minlength=len(groups))
    if not sizes.all():
        return
    # Depends on the data set's name, not on its position: other sets do not change its intervals.
    seed = settings.seed + zlib.crc32(info.name.encode())
    columns = parts.scores[list(detectors)].to_numpy().T
    variants = {"": parts.id.rows}
    if parts.shifted:
        variants["fs_"] = np.concatenate([parts.id.rows, *(shifted.rows for shifted in parts.shifted)])
    for variant, id_rows in variants.items():
        replicates = stratified_bootstrap(
            columns[:, id_rows],
            columns[:, part.rows[keep]],
            codes[keep],
            tpr=settings.tpr,
            rule=settings.rule,
            repetitions=settings.bootstrap,
            seed=seed,
        )
        for kind, metric in (("fpr", variant + settings.fpr_name), ("auroc", f"{variant}auroc")):
            for prefix in ("mean", "pooled"):
                low, high = percentile_interval(getattr(replicates, prefix)(kind), confidence=settings.confidence)
                weights = np.full(len(sizes), 1 / len(sizes)) if prefix == "mean" else sizes / sizes.sum()
                for index, detector in enumerate(detectors):
                    place = Place(detector, info.name)
                    ends = float(low[index]), float(high[index])
                    if ends[0] == ends[1]:
                        ends = _from_classes(rows, place, groups, metric, weights)
                    rows.set_interval(place, f"{prefix}_{metric}", *ends)
    for detector in detectors:
        for metric in parts.der_names:
            found = [rows.value(Place(detector, info.name, name), metric) for _, name in groups]
            shares = np.array([value for value in found if value is not None])
            if len(shares) == len(groups) and not np.isnan(shares).any():
                # The threshold is fixed by the training images: drawing a class anew is a binomial draw.
                draws = np.random.default_rng(seed).binomial(sizes, shares, (settings.bootstrap, len(sizes))) / sizes
                bounds = percentile_interval(draws.mean(axis=1), confidence=settings.confidence)
                place, ends = Place(detector, info.name), (float(bounds[0]), float(bounds[1]))
                if ends[0] == ends[1]:
                    ends = _from_classes(rows, place, groups, metric, np.full(len(sizes), 1 / len(sizes)))
                rows.set_interval(place, f"mean_{metric}", *ends)


def _from_classes(
    rows: Rows, place: Place, groups: Sequence[tuple[int, str]], metric: str, weights: np.ndarray
) -> tuple[float, float]:
    """Interval of a weighted mean from the intervals of its classes (MOVER, Zou and Donner 2008).

    Where no image of any class is accepted, or every one, all bootstrap draws agree: they would claim certainty that
    the classes, each with an interval of its own, do not have.
    """
    found = [rows.row(Place(place.detector, place.dataset, name), metric) for _, name in groups]
    values, lows, highs = np.array([(row.value, row.ci_low, row.ci_high) for row in found]).T
    mean = float((weights * values).sum())
    below = float(np.sqrt(np.square(weights * (values - lows)).sum()))
    above = float(np.sqrt(np.square(weights * (highs - values)).sum()))
    return max(0.0, mean - below), min(1.0, mean + above)
