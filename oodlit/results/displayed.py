"""Results with detectors under their display names."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import pandas as pd
from msgspec import structs

from oodlit.results.any_results import AnyResults
from oodlit.results.display_names import display_names
from oodlit.results.run_record import RunRecord

R = TypeVar("R", bound=AnyResults)

_BY_DETECTOR = (
    "detector_settings",
    "references",
    "fit_notes",
    "thresholds",
    "ms_per_image",
    "ms_per_box",
    "confidences",
    "untrained",
)
"""Entries of a record by name of a detector, if the record has them."""


def displayed(results: R) -> R:
    """Return the same results with detectors under their display names, in all tables and in the record."""
    return renamed(results, display_names(results.run))


def renamed(results: R, names: Mapping[str, str]) -> R:
    """Return the same results with other names of all detectors."""
    if all(name == shown for name, shown in names.items()):
        return results
    tables: dict[str, Any] = {}
    for field in dataclasses.fields(results):  # type: ignore[arg-type]  # results of every kind are data classes
        if isinstance(table := getattr(results, field.name), pd.DataFrame):
            table = table.rename(columns=names)
            of_detectors = {"detector": table["detector"].replace(names)} if "detector" in table else {}
            tables[field.name] = table.assign(**of_detectors)
    return dataclasses.replace(results, run=_renamed(results.run, names), **tables)  # type: ignore[type-var]


def _renamed(run: RunRecord, names: Mapping[str, str]) -> RunRecord:
    def by_name(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in entries.items()}

    overview = {
        name: structs.replace(entry, same_order_as=by_name(entry.same_order_as)) for name, entry in run.overview.items()
    }
    notes = [note.partition(": ") for note in run.notes]  # some begin with the name of a detector
    return structs.replace(
        run,
        notes=[names.get(start, start) + colon + rest for start, colon, rest in notes],
        detectors=list(names.values()),
        overview=by_name(overview),
        time=structs.replace(run.time, fit=by_name(run.time.fit)),
        undefined=[structs.replace(one, detector=names.get(one.detector, one.detector)) for one in run.undefined],
        **{name: by_name(getattr(run, name)) for name in _BY_DETECTOR if hasattr(run, name)},
    )
