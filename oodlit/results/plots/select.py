"""Selection of data sets, detectors, images and values for figures."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.results.info import DatasetInfo
from oodlit.results.plots.charts import Estimate
from oodlit.results.run_results import RunResults

_NOUNS = {Role.OOD: "an OOD set", Role.UNIT_TEST: "a set of unit tests", Role.POOL: "a pool"}


def chosen_detectors(results: RunResults, detectors: Sequence[str] | None) -> list[str]:
    """Check the names of detectors; None = all."""
    names = results.resolve_detectors(*results.detectors if detectors is None else detectors)
    if not names:
        fix = "pass names of detectors, or None for all detectors of the results"
        raise InvalidArgumentError(f"a figure requires at least one detector, got none; {fix}")
    return names


def chosen_models(
    figure: str, results: RunResults | Sequence[RunResults], names: Sequence[str] | None
) -> list[tuple[str, RunResults]]:
    """Results of one or more models with their names; missing names are replaced by the names of the networks."""
    models = list(results) if isinstance(results, Sequence) else [results]
    if not models:
        raise InvalidArgumentError(f"{figure}: expected the results of at least one run, got none")
    if names is not None and len(names) != len(models):
        raise InvalidArgumentError(
            f"{figure}: expected names to have one entry per result ({len(models)}), got {len(names)}"
        )
    titles = names if names is not None else [model_name(one) or f"model {i + 1}" for i, one in enumerate(models)]
    return list(zip(titles, models, strict=True))


def chosen_set(results: RunResults, dataset: str | None, *roles: Role, classes: bool = False) -> DatasetInfo:
    """The named data set, or the first of the first role.

    Args:
        results: The results.
        dataset: Name of a data set; None = the first.
        roles: Roles that the figure can show.
        classes: Whether the data set must have classes.
    """
    what = " with classes" if classes else ""
    if dataset is not None:
        info = results.dataset(dataset)
        if info.role not in roles or (classes and not info.class_names):
            kind = f"role {info.role}" if info.role not in roles else "no classes"
            wanted = " or ".join(_NOUNS[role] for role in roles)
            raise InvalidArgumentError(f"{dataset!r} has {kind}, but the figure requires {wanted}{what}")
        return info
    found = [info for info in results.datasets if info.role is roles[0] and (info.class_names or not classes)]
    if not found:
        raise InvalidArgumentError(f"the figure requires {_NOUNS[roles[0]]}{what}, but the results have no such set")
    return found[0]


def id_and_ood_images(
    results: RunResults, dataset: str | None, ood_class: str | None = None
) -> tuple[DatasetInfo, pd.DataFrame, pd.DataFrame]:
    """Return the data set, its ID images, and its OOD images (of one class or all); raise if either is empty."""
    info = chosen_set(results, dataset, Role.OOD, Role.UNIT_TEST)
    inside, ood = (results.images(part.name) for part in (results.id_dataset, info))
    if ood_class is not None:
        UnknownNameError.check(f"class of {info.name!r}", ood_class, info.class_names)
        ood = results.scores[results.scores["dataset"] == info.name]
        ood = ood[ood["group"] == info.class_names.index(ood_class)]
    if not len(ood) or not len(inside):
        raise InvalidArgumentError(
            f"{info.name}: expected both ID and OOD images, got {len(inside)} ID and {len(ood)} OOD images"
        )
    return info, inside, ood


def estimates(results: RunResults, dataset: str, metric: str) -> Mapping[tuple[str, str], Estimate]:
    """Values of a metric by detector and class; the class is empty for the whole data set."""
    rows = results.table[(results.table["dataset"] == dataset) & (results.table["metric"] == metric)]
    values = rows[["detector", "ood_class", "value", "ci_low", "ci_high", "n_ood"]].itertuples(index=False)
    return defaultdict(Estimate, {(detector, name): Estimate(*numbers) for detector, name, *numbers in values})


def model_name(results: RunResults) -> str:
    """Name of the network; empty if unknown."""
    return results.run.backbone.name
