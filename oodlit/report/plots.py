"""Figures of results, each a function of `Results` that returns a matplotlib `Figure`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results.info import DatasetInfo
from oodlit.roles import Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oodlit.results import Results

__all__ = [
    "FIGURES",
    "accuracy_fpr",
    "class_distribution",
    "fpr_per_class",
    "roc",
    "score_histograms",
    "unit_tests",
]

# Okabe and Ito's colours, told apart with every common colour blindness; yellow is left out (unreadable on white).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")
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
    info = _grouped(results, dataset, Role.OOD)
    names = _detectors(results, detectors)
    metric = metric or results.settings.fpr_name
    values = results.per_class(info.name, metric)
    counts = values.pop("n")
    values = values[names]
    values = values.loc[values.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    labels = [f"{_short(str(name))}  ({counts[name]})" for name in values.index]
    title = f"{_pretty(metric)} per class of {info.name}"
    if len(names) > _MAX_BARS:
        means = values.mean().sort_values(kind="stable")
        titles = [f"{name}  (mean {100 * mean:.1f})" for name, mean in means.items()]
        return _heat_map(values[list(means.index)].T, titles, labels, title)
    height = 0.9 + 0.17 * len(labels) * max(1.0, 0.5 * len(names))
    figure, axes = _figure((7.2, height))
    table = results.table[(results.table["dataset"] == info.name) & (results.table["metric"] == metric)]
    thickness = 0.8 / len(names)
    for index, name in enumerate(names):
        rows = table[table["detector"] == name].set_index("ood_class").loc[values.index]
        y = np.arange(len(labels)) + (index - (len(names) - 1) / 2) * thickness
        value = rows["value"].to_numpy()
        axes.barh(y, value, thickness * 0.92, color=_colour(index), label=_with_mean(results, info, name, metric))
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
    info = _grouped(results, dataset, Role.OOD)
    values = results.per_class(info.name)
    means = values[_detectors(results, detectors)].mean().sort_values(kind="stable")
    figure, axes = _figure((7.2, max(4.2, 1.0 + 0.17 * len(means))))
    for index, (name, mean) in enumerate(means.items()):
        x = np.sort(values[name].dropna().to_numpy())
        share = np.arange(1, len(x) + 1) / len(x)
        axes.step(
            np.concatenate([[0], x, [1]]),
            np.concatenate([[0], share, [1]]),
            where="post",
            color=_colour(index),
            linestyle=_style(index),
            linewidth=1.4,
            label=f"{100 * mean:5.1f} %  {name}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel=f"{_pretty(results.settings.fpr_name)} of a class at most")
    axes.set_ylabel(f"share of the {len(values)} classes")
    _percent_axes(axes)
    axes.set_title(f"OOD classes of {info.name}: area above the curve = mean FPR", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False, title="mean FPR", alignment="left")
    return figure


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
    info, id_scores, ood_scores = _samples(results, dataset, ood_class)
    names = _detectors(results, detectors)
    figure, axes = _figure((7.2, max(4.4, 1.0 + 0.17 * len(names))))
    for index, name in enumerate(names):
        fpr, tpr = roc_points(id_scores[name].to_numpy(), ood_scores[name].to_numpy())
        threshold = results.run["thresholds"][name][results.settings.fpr_name]
        point = tuple(float((s[name] >= threshold).mean()) for s in (ood_scores, id_scores))
        axes.plot(fpr, tpr, color=_colour(index), linestyle=_style(index), linewidth=1.3, label=name)
        axes.plot(*point, marker="o", color=_colour(index), markersize=4.5, markeredgecolor="white")
    axes.axhline(results.settings.tpr, color="0.6", linewidth=0.7, zorder=0)
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.clip(x, 0, None)), np.square))
    axes.set_xticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="OOD images accepted (FPR)", ylabel="ID images accepted (TPR)")
    _percent_axes(axes)
    of = f"{info.name}, {ood_class}" if ood_class else info.name
    axes.set_title(f"ROC of {of}: dots at {100 * results.settings.tpr:g} % TPR", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return figure


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
        InvalidArgumentError: There is no OOD set, or no image.
    """
    info, id_scores, ood_scores = _samples(results, dataset, None)
    names = _detectors(results, detectors)
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
        for values, colour, label in zip(parts, _COLOURS, ("ID", f"OOD ({info.name})"), strict=False):
            inside = np.clip(values, low, high)
            weights = np.full(len(inside), 1 / len(inside))
            axes.hist(inside, edges, weights=weights, color=colour, alpha=0.6, label=label, linewidth=0)
        threshold = results.run["thresholds"][name][results.settings.fpr_name]
        axes.axvline(np.clip(threshold, low, high), color="black", linewidth=1, label="threshold")
        accepted = float((ood_scores[name] >= threshold).mean())
        axes.set_title(f"{name}   {100 * accepted:.1f} % of OOD accepted", fontsize=7.5, loc="left")
        axes.set_yticks([])
        axes.tick_params(labelsize=6.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    return figure


def unit_tests(results: "Results", dataset: str | None = None, *, detectors: Sequence[str] | None = None) -> Figure:
    """Heat map of the FPR on synthetic unit tests; failed tests are red, passed ones blue.

    Args:
        results: The results.
        dataset: A set of unit tests; None = the first.
        detectors: Which detectors; None = all.

    Returns:
        The figure, with the number of failed tests beside each detector.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There are no unit tests.
    """
    info = _grouped(results, dataset, Role.UNIT_TEST)
    names = _detectors(results, detectors)
    values = results.per_class(info.name).drop(columns="n")[names]
    table = results.table
    rows = table[(table["dataset"] == info.name) & (table["metric"] == "unit_test_failures")].set_index("detector")
    labels = [f"{name}  ({rows['value'][name]:g} failed)" for name in names]
    limit = results.settings.unit_test_limit
    title = f"{_pretty(results.settings.fpr_name)} on {info.name}: red above {100 * limit:g} % = failed"
    return _heat_map(values.T, labels, [str(n) for n in values.index], title, limit=limit)


def accuracy_fpr(
    results: "Results | Sequence[Results]",
    dataset: str | None = None,
    *,
    names: Sequence[str] | None = None,
    detectors: Sequence[str] | None = None,
) -> Figure:
    """ID accuracy against FPR, over models: does a better classifier know better what it does not know?

    Args:
        results: The results of one or more models on the same OOD set.
        dataset: An OOD set; None = the first of the first results.
        names: Name of each model; None = `run["backbone"]["name"]`, or its position.
        detectors: Which detectors; None = those that all results have.

    Returns:
        The figure: one point per model and detector, the points of a detector joined.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There is no OOD set, or the number of names is wrong.
    """
    models = [results] if not isinstance(results, Sequence) else list(results)
    if not models or (names is not None and len(names) != len(models)):
        raise InvalidArgumentError(f"accuracy_fpr: {len(models)} results and {len(names or [])} names do not fit")
    first = models[0]
    info = _ood(first, dataset)
    titles = list(names) if names is not None else [_model_name(r, i) for i, r in enumerate(models)]
    common = [d for d in first.detectors if all(d in r.detectors for r in models)]
    chosen = _detectors(first, detectors) if detectors is not None else common
    fpr = first.settings.fpr_name
    metric = f"mean_{fpr}" if info.class_names else fpr
    figure, axes = _figure((7.2, max(4.4, 1.0 + 0.17 * len(chosen))))
    accuracy = [r.value("accuracy", dataset=_id_name(r)) for r in models]
    order = np.argsort(accuracy, kind="stable")
    for index, name in enumerate(chosen):
        y = [r.value(metric, dataset=info.name, detector=name) for r in models]
        axes.plot(
            np.array(accuracy)[order],
            np.array(y)[order],
            marker=_MARKERS[index // len(_COLOURS) % len(_MARKERS)],
            markersize=5,
            color=_colour(index),
            linestyle=_style(index),
            linewidth=0.9,
            label=name,
        )
    for x, title in zip(accuracy, titles, strict=True):
        axes.annotate(
            title, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
            rotation=35, fontsize=7, ha="left", va="bottom",
        )  # fmt: skip
    axes.set(xlabel="accuracy on ID images", ylabel=f"{_pretty(metric)} on {info.name}", ylim=(0, None))
    _percent_axes(axes)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return figure


FIGURES: dict[str, Callable[..., Figure]] = {
    function.__name__: function
    for function in (fpr_per_class, class_distribution, roc, score_histograms, unit_tests, accuracy_fpr)
}
"""All figures by name."""


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


def _figure(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    # Figure() instead of pyplot: no global state, nothing to close, no display needed.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _percent_axes(axes: "Axes") -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color="0.92", linewidth=0.6)


def _heat_map(
    values: pd.DataFrame, rows: Sequence[str], columns: Sequence[str], title: str, *, limit: float | None = None
) -> Figure:
    """Detectors as rows; every cell holds its value in percent."""
    width, height = 1.9 + 0.25 * len(columns), 1.7 + 0.24 * len(rows)
    figure = Figure(figsize=(max(width, 5.0), height), layout="constrained")
    axes = figure.subplots()
    shares = values.to_numpy(dtype=np.float64)
    colours: dict[str, Any] = {"cmap": "viridis_r", "vmin": 0, "vmax": 1}
    if limit is not None and 0 < limit < 1:
        colours = {"cmap": "RdBu_r", "norm": TwoSlopeNorm(limit, 0, 1)}
    image = axes.imshow(shares, aspect="auto", **colours)
    for (i, j), share in np.ndenumerate(shares):
        text = "-" if np.isnan(share) else f"{100 * share:.0f}"
        red, green, blue, _ = image.to_rgba(share)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(j, i, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{title} (percent)", loc="left", fontsize=10)
    return figure


def _span(groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """From the smallest 0.5 percentile to the largest 99.5 percentile of the groups' finite values."""
    ends = [np.quantile(v[np.isfinite(v)], [0.005, 0.995]) for v in groups if np.isfinite(v).any()]
    if not ends:
        return 0.0, 1.0
    low, high = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _samples(
    results: "Results", dataset: str | None, ood_class: str | None
) -> tuple[DatasetInfo, pd.DataFrame, pd.DataFrame]:
    info = _ood(results, dataset)
    scores = results.scores
    ood = scores[scores["dataset"] == info.name]
    if ood_class is not None:
        if ood_class not in info.class_names:
            raise UnknownNameError.of(f"class of {info.name!r}", ood_class, info.class_names)
        ood = ood[ood["group"] == info.class_names.index(ood_class)]
    id_scores = scores[scores["dataset"] == _id_name(results)]
    if not len(ood) or not len(id_scores):
        raise InvalidArgumentError(f"{info.name}: {len(id_scores)} ID and {len(ood)} OOD images; both are needed")
    return info, id_scores, ood


def _id_name(results: "Results") -> str:
    return next(info.name for info in results.datasets if info.role is Role.ID)


def _ood(results: "Results", dataset: str | None) -> DatasetInfo:
    if dataset is not None:
        return results.dataset(dataset)
    found = [info for info in results.datasets if info.role is Role.OOD]
    if not found:
        raise InvalidArgumentError("these results hold no OOD set")
    return found[0]


def _grouped(results: "Results", dataset: str | None, role: Role) -> DatasetInfo:
    if dataset is not None:
        return results.dataset(dataset)
    found = [info for info in results.datasets if info.role is role and info.class_names]
    if not found:
        raise InvalidArgumentError(f"these results hold no {role} set with classes")
    return found[0]


def _detectors(results: "Results", detectors: Sequence[str] | None) -> list[str]:
    names = list(results.detectors if detectors is None else detectors)
    for name in names:
        if name not in results.detectors:
            raise UnknownNameError.of("detector in these results", name, results.detectors)
    return names


def _model_name(results: "Results", index: int) -> str:
    backbone = results.run.get("backbone")
    if isinstance(backbone, dict):
        backbone = backbone.get("name")
    return str(backbone) if backbone else f"model {index + 1}"


def _with_mean(results: "Results", info: DatasetInfo, detector: str, metric: str) -> str:
    mean = results.value(f"mean_{metric}", dataset=info.name, detector=detector)
    return f"{detector}  (mean {100 * mean:.1f} %)"


def _pretty(metric: str) -> str:
    """`mean_fpr95` as `mean FPR@95`."""
    text = metric.replace("_", " ")
    for name in ("fpr", "der"):
        text = text.replace(name, f"{name.upper()}@")
    return text.replace("auroc", "AUROC")


def _short(name: str, length: int = 28) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _style(index: int) -> str:
    return _STYLES[index // len(_COLOURS) % len(_STYLES)]
