"""Intervals of means over OOD classes and of pooled values, by the stratified bootstrap."""

import zlib
from collections.abc import Sequence

import numpy as np

from oodlit.metrics.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.results.parts import Part, Parts
from oodlit.results.rows import Place, Rows

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
                for index, detector in enumerate(detectors):
                    place = Place(detector, info.name)
                    rows.set_interval(place, f"{prefix}_{metric}", float(low[index]), float(high[index]))
    for detector in detectors:
        for metric in parts.der_names:
            found = [rows.value(Place(detector, info.name, name), metric) for _, name in groups]
            shares = np.array([value for value in found if value is not None])
            if len(shares) == len(groups) and not np.isnan(shares).any():
                # The threshold is fixed by the training images: drawing a class anew is a binomial draw.
                draws = np.random.default_rng(seed).binomial(sizes, shares, (settings.bootstrap, len(sizes))) / sizes
                low, high = percentile_interval(draws.mean(axis=1), confidence=settings.confidence)
                rows.set_interval(Place(detector, info.name), f"mean_{metric}", float(low), float(high))
