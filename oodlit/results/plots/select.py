"""Which data sets, detectors and scores a figure shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results.info import DatasetInfo
from oodlit.roles import Role

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["chosen_detectors", "grouped_set", "id_name", "ood_set", "samples"]


def chosen_detectors(results: "Results", detectors: Sequence[str] | None) -> list[str]:
    """The detectors to show, checked; None = all."""
    names = list(results.detectors if detectors is None else detectors)
    if not names:
        raise InvalidArgumentError("a figure of no detector: at least one is needed")
    for name in names:
        if name not in results.detectors:
            raise UnknownNameError.of("detector in these results", name, results.detectors)
    return names


def grouped_set(results: "Results", dataset: str | None, role: Role) -> DatasetInfo:
    """The named data set, or the first of a role with classes."""
    if dataset is not None:
        info = results.dataset(dataset)
        if info.role is not role or not info.class_names:
            kind = f"role {info.role}" if info.role is not role else "no classes"
            raise InvalidArgumentError(f"{dataset!r} has {kind}; this figure needs a set of role {role} with classes")
        return info
    found = [info for info in results.datasets if info.role is role and info.class_names]
    if not found:
        raise InvalidArgumentError(f"these results hold no {role} set with classes")
    return found[0]


def ood_set(results: "Results", dataset: str | None, *, unit_tests: bool = False) -> DatasetInfo:
    """The named data set, or the first OOD set."""
    if dataset is not None:
        info = results.dataset(dataset)
        if info.role is not Role.OOD and not (unit_tests and info.role is Role.UNIT_TEST):
            raise InvalidArgumentError(f"{dataset!r} has role {info.role}; this figure needs an OOD set")
        return info
    found = [info for info in results.datasets if info.role is Role.OOD]
    if not found:
        raise InvalidArgumentError("these results hold no OOD set")
    return found[0]


def id_name(results: "Results") -> str:
    """Name of the ID set."""
    return next(info.name for info in results.datasets if info.role is Role.ID)


def samples(
    results: "Results", dataset: str | None, ood_class: str | None
) -> tuple[DatasetInfo, pd.DataFrame, pd.DataFrame]:
    """Data set, ID images and OOD images, of one class or all; both kinds are there."""
    info = ood_set(results, dataset, unit_tests=True)
    scores = results.scores
    ood = scores[scores["dataset"] == info.name]
    if ood_class is not None:
        if ood_class not in info.class_names:
            raise UnknownNameError.of(f"class of {info.name!r}", ood_class, info.class_names)
        ood = ood[ood["group"] == info.class_names.index(ood_class)]
    elif chosen := results.settings.classes.get(info.name):  # as the table: only the classes that are evaluated
        ood = ood[ood["group"].isin([info.class_names.index(name) for name in chosen])]
    id_scores = scores[scores["dataset"] == id_name(results)]
    if not len(ood) or not len(id_scores):
        raise InvalidArgumentError(f"{info.name}: {len(id_scores)} ID and {len(ood)} OOD images; both are needed")
    return info, id_scores, ood
