"""ID accuracy against FPR, over models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from oodlit.errors import InvalidArgumentError
from oodlit.results.plots.select import chosen_detectors, id_name, ood_set
from oodlit.results.plots.style import COLOURS, MARKERS, colour_of, new_figure, percent_axes, pretty, shown, style_of

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["accuracy_fpr"]


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
        InvalidArgumentError: There is no OOD set or no accuracy, or the number of names is wrong.
    """
    models = [results] if not isinstance(results, Sequence) else list(results)
    if not models or (names is not None and len(names) != len(models)):
        raise InvalidArgumentError(f"accuracy_fpr: {len(models)} results and {len(names or [])} names do not fit")
    first = models[0]
    info = ood_set(first, dataset)
    titles = list(names) if names is not None else [_model_name(r, i) for i, r in enumerate(models)]
    common = [d for d in first.detectors if all(d in r.detectors for r in models)]
    chosen = chosen_detectors(first, detectors) if detectors is not None else common
    fpr = first.settings.fpr_name
    metric = f"mean_{fpr}" if info.class_names else fpr
    figure, axes = new_figure((7.2, max(4.4, 1.0 + 0.17 * len(chosen))))
    for title, model in zip(titles, models, strict=True):
        if "accuracy" not in set(model.table.loc[model.table["dataset"] == id_name(model), "metric"]):
            raise InvalidArgumentError(
                f"accuracy_fpr: no accuracy on {id_name(model)!r} ({title}), its images have no labels"
            )
    accuracy = [r.value("accuracy", dataset=id_name(r)) for r in models]
    order = np.argsort(accuracy, kind="stable")
    for index, name in enumerate(chosen):
        y = [r.value(metric, dataset=info.name, detector=name) for r in models]
        axes.plot(
            np.array(accuracy)[order],
            np.array(y)[order],
            marker=MARKERS[index // len(COLOURS) % len(MARKERS)],
            markersize=5,
            color=colour_of(index),
            linestyle=style_of(index),
            linewidth=0.9,
            label=shown(name),
        )
    for x, title in zip(accuracy, titles, strict=True):
        axes.annotate(
            shown(title), (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
            rotation=35, fontsize=7, ha="left", va="bottom",
        )  # fmt: skip
    axes.set(xlabel="accuracy on ID images", ylabel=f"{pretty(metric)} on {shown(info.name)}", ylim=(0, None))
    percent_axes(axes)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return figure


def _model_name(results: "Results", index: int) -> str:
    backbone = results.run.get("backbone")
    if isinstance(backbone, dict):
        backbone = backbone.get("name")
    return str(backbone) if backbone else f"model {index + 1}"
