"""Which data sets, detectors, images and values a figure shows."""

from collections.abc import Sequence

import pandas as pd

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results.info import DatasetInfo
from oodlit.results.plots.charts import Estimate, Grid
from oodlit.results.run_results import RunResults
from oodlit.roles import Role

__all__ = ["chosen_detectors", "chosen_set", "class_grid", "evaluated_images", "id_name", "samples"]

_NOUNS = {Role.OOD: "an OOD set", Role.UNIT_TEST: "a set of unit tests"}


def chosen_detectors(results: RunResults, detectors: Sequence[str] | None) -> list[str]:
    """The detectors to show, checked; None = all."""
    names = list(results.detectors if detectors is None else detectors)
    if not names:
        raise InvalidArgumentError("a figure of no detector: at least one is needed")
    results.check_detectors(*names)
    return names


def chosen_set(results: RunResults, dataset: str | None, *roles: Role, classes: bool = False) -> DatasetInfo:
    """The named data set, or the first of the first role.

    Args:
        results: The results.
        dataset: Name of a data set; None = the first.
        roles: Roles that the figure can show.
        classes: Whether the data set must have classes.
    """
    wanted = _NOUNS[roles[0]] + (" with classes" if classes else "")
    if dataset is not None:
        info = results.dataset(dataset)
        if info.role not in roles or (classes and not info.class_names):
            kind = f"role {info.role}" if info.role not in roles else "no classes"
            raise InvalidArgumentError(f"{dataset!r} has {kind}; this figure needs {wanted}")
        return info
    found = [info for info in results.datasets if info.role is roles[0] and (info.class_names or not classes)]
    if not found:
        raise InvalidArgumentError(f"this figure needs {wanted}; these results hold none")
    return found[0]


def id_name(results: RunResults) -> str:
    """Name of the ID set."""
    return next(info.name for info in results.datasets if info.role is Role.ID)


def evaluated_images(results: RunResults, info: DatasetInfo) -> pd.DataFrame:
    """The images of a data set on which its values rest: those of the chosen classes, where only some were chosen."""
    rows = results.scores[results.scores["dataset"] == info.name]
    chosen = results.settings.classes.get(info.name)
    return rows[rows["group"].isin([info.class_names.index(name) for name in chosen])] if chosen else rows


def samples(
    results: RunResults, dataset: str | None, ood_class: str | None = None
) -> tuple[DatasetInfo, pd.DataFrame, pd.DataFrame]:
    """Data set, ID images and OOD images, of one class or all; both kinds are there."""
    info = chosen_set(results, dataset, Role.OOD, Role.UNIT_TEST)
    inside, ood = (evaluated_images(results, results.dataset(name)) for name in (id_name(results), info.name))
    if ood_class is not None:
        if ood_class not in info.class_names:
            raise UnknownNameError.of(f"class of {info.name!r}", ood_class, info.class_names)
        ood = results.scores[results.scores["dataset"] == info.name]
        ood = ood[ood["group"] == info.class_names.index(ood_class)]
    if not len(ood) or not len(inside):
        raise InvalidArgumentError(f"{info.name}: {len(inside)} ID and {len(ood)} OOD images; both are needed")
    return info, inside, ood


def class_grid(
    results: RunResults,
    info: DatasetInfo,
    detectors: Sequence[str],
    metric: str,
    *,
    totals: str,
    title: str,
    limit: float | None = None,
) -> Grid:
    """Values of a metric by class and detector, classes in the order of the data set; without classes, one row.

    Args:
        results: The results.
        info: The data set.
        detectors: The columns.
        metric: Name of the metric.
        totals: Name of the metric of the whole data set that stands beside a detector.
        title: What the values are.
        limit: Values above it fail.

    Raises:
        UnknownNameError: The table has no such values.
    """
    rows = results.table[results.table["dataset"] == info.name]
    found = _estimates(rows[rows["metric"] == metric])
    sums = _estimates(rows[rows["metric"] == totals])
    classes = [name for name in info.class_names or ("",) if any((d, name) in found for d in detectors)]
    if not classes:
        raise UnknownNameError.of(f"metric per class of {info.name!r}", metric, map(str, rows["metric"].unique()))
    return Grid(
        title,
        tuple(name or info.name for name in classes),
        tuple(detectors),
        tuple(tuple(found.get((detector, name), Estimate()) for detector in detectors) for name in classes),
        tuple(sums.get((detector, ""), Estimate()) for detector in detectors),
        limit,
    )


def _estimates(rows: pd.DataFrame) -> dict[tuple[str, str], Estimate]:
    """Values by detector and class."""
    numbers = zip(*(rows[name].tolist() for name in ("value", "ci_low", "ci_high", "n_ood")), strict=True)
    places = zip(rows["detector"], rows["ood_class"], strict=True)
    return {place: Estimate(*row) for place, row in zip(places, numbers, strict=True)}
