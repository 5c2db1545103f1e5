"""ID accuracy against FPR, over models."""

from collections.abc import Sequence

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.results.plots.charts import Curves, Line
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_models, chosen_set
from oodlit.results.run_results import RunResults


@Plot
def accuracy_fpr(
    results: RunResults | Sequence[RunResults],
    dataset: str | None = None,
    *,
    names: Sequence[str] | None = None,
    detectors: Sequence[str] | None = None,
) -> Curves:
    """ID accuracy against FPR over models: are better classifiers better at rejecting OOD images?

    Args:
        results: The results of one or more models on the same OOD set.
        dataset: An OOD set; None = the first of the first results.
        names: Name of each model; None = `run.backbone.name`, or its position.
        detectors: Names of detectors; None = those that all results have.

    Returns:
        The figure: one point per model and detector, with the points of a detector joined.

    Raises:
        UnknownNameError: The results have no such data set or detector.
        InvalidArgumentError: There is no OOD set or no accuracy, or the number of names is wrong.
    """
    models = chosen_models("accuracy_fpr", results, names)
    first = models[0][1]
    info = chosen_set(first, dataset, Role.OOD)
    common = [name for name in first.detectors if all(name in model.detectors for _, model in models)]
    metric = f"mean_{first.settings.fpr_name}" if info.class_names else first.settings.fpr_name
    points = sorted(((_accuracy(model, title), title, model) for title, model in models), key=lambda point: point[0])
    accuracies = tuple(accuracy for accuracy, _, _ in points)
    lines = []
    for name in common if detectors is None else chosen_detectors(first, detectors):
        values = tuple(model.value(metric, dataset=info.name, detector=name) for _, _, model in points)
        lines.append(Line(name, accuracies, values, tuple(zip(accuracies, values, strict=True))))
    return Curves(
        "",
        "accuracy on ID images",
        f"{pretty(metric)} on {info.name}",
        tuple(lines),
        whole=False,
        names=tuple((accuracy, title) for accuracy, title, _ in points),
    )


def _accuracy(model: RunResults, title: str) -> float:
    name = model.id_dataset.name
    if "accuracy" not in set(model.table.loc[model.table["dataset"] == name, "metric"]):
        wish = "which requires labels and predictions of its images"
        raise InvalidArgumentError(f"accuracy_fpr: {title} has no accuracy on {name!r}, {wish}")
    return model.value("accuracy", dataset=name)
