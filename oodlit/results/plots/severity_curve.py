"""Detection from the easiest to the hardest classes of a pool, compared with published curves."""

import math
from collections.abc import Sequence

import numpy as np

from oodlit.base.roles import Role
from oodlit.results.info import DatasetInfo
from oodlit.results.plots.charts import Band, Curves, Line
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_set
from oodlit.results.published.cood import LEVELS, kappa_of, of_imagenet21k, published_curves, quantile_curves
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import levels

BANDS = ((0.05, 0.95), (0.25, 0.75))
"""Quantiles of the published curves at the edges of the bands."""


@Plot
def severity_curve(
    results: RunResults,
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    metric: str = "auroc",
    published: str | None = None,
) -> Curves:
    """AUROC at every level of severity, one line per detector; each detector has its own levels.

    If comparable, bands show the published curves of one confidence function: for AUROC on a pool of ImageNet-21k, with
    the 1000 classes of ImageNet-1k as ID classes.

    Args:
        results: The results.
        dataset: A pool; None = the first.
        detectors: Names of detectors; None = all. The legend is sorted by the mean over the levels, best first.
        metric: "auroc" or the name of the FPR.
        published: Confidence function of the published curves; None = that of the first detector that has one.

    Returns:
        The figure.

    Raises:
        UnknownNameError: A data set, detector or confidence function is unknown.
        InvalidArgumentError: No data set is a pool.
    """
    info = chosen_set(results, dataset, Role.POOL)
    table = levels(results, info.name)
    values = {name: rows[metric].astype(float).tolist() for name, rows in table.groupby("detector", sort=False)}
    names = chosen_detectors(results, detectors)
    means = {name: float(np.mean(values[name])) for name in names}
    names.sort(key=lambda name: (math.isnan(means[name]), means[name] * (-1 if metric == "auroc" else 1)))
    x = tuple(float(level) for level in range(len(values[names[0]])))
    lines = []
    for name in names:
        y = tuple(values[name])
        lines.append(Line(f"{100 * means[name]:5.1f} %  {name}", x, y, tuple(zip(x, y, strict=True))))
    bands = published_bands(results, info, names, published) if metric == "auroc" else ()
    shown = [y for line in lines for y in line.y if not math.isnan(y)] + [y for band in bands for y in band.low]
    return Curves(
        f"{info.name}: {info.id_classes} of {len(info.class_names)} classes per level",
        "severity: from the easiest to the hardest classes for each detector",
        pretty(metric),
        tuple(lines),
        legend=f"mean {pretty(metric)} over the levels",
        whole=False,
        bands=bands,
        ticks=tuple((place, f"s{level}") for level, place in enumerate(x)),
        bottom=math.floor(10 * min(shown, default=0.0)) / 10,
    )


def published_bands(
    results: RunResults, info: DatasetInfo, detectors: Sequence[str], kappa: str | None = None
) -> tuple[Band, ...]:
    """Bands of the published curves, the wider one first; none if they are not comparable."""
    known = [kappa] if kappa is not None else [found for name in detectors if (found := detector_kappa(results, name))]
    if not known or not comparable(info):
        return ()
    x, n = tuple(float(level) for level in range(LEVELS)), len(published_curves(known[0]))
    bands = []
    for low, high in BANDS:
        below, above = quantile_curves(known[0], (low, high))
        bands.append(Band(f"{100 * low:g} to {100 * high:g} % of {n} published curves ({known[0]})", x, below, above))
    return tuple(bands)


def comparable(info: DatasetInfo) -> bool:
    """Whether a pool is comparable with the published one: of ImageNet-21k, for the 1000 classes of ImageNet-1k."""
    return info.id_classes == 1000 and of_imagenet21k(info.class_names)


def detector_kappa(results: RunResults, detector: str) -> str | None:
    """The published confidence function that a detector of a run corresponds to; None if there is none."""
    config = results.run.detector_settings.get(detector)
    return kappa_of(config.class_path.rpartition(".")[2], config.init_args) if config else None
