"""The runs that sections compare."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from oodlit.base.errors import InvalidArgumentError
from oodlit.metrics.entry import MetricEntry
from oodlit.report.headline import of_sets, share_text
from oodlit.results import RunColumn, compare_runs, conclusions, run_columns
from oodlit.results.any_results import AnyResults
from oodlit.results.comparing.several_runs import values_of_column
from oodlit.results.glossary import MEAN, entry_of
from oodlit.results.names import MODEL, distinct

R = TypeVar("R", bound=AnyResults)


def titles(results: Mapping[str, R], title_of: Callable[[R], str]) -> dict[str, str]:
    """Titles of the runs: their networks, with the names of the runs if several have the same. They are distinct."""
    names = {name: title_of(result) or name for name, result in results.items()}
    shared = Counter(names.values())
    found = (title if shared[title] == 1 else f"{title} ({name})" for name, title in names.items())
    return dict(zip(names, distinct(found), strict=True))


@dataclass(frozen=True)
class Several:
    """The runs of a page that are compared.

    Args:
        runs: Results by title.
        links: Links to the details of a run, by title.
    """

    runs: Mapping[str, Any]
    links: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> list[RunColumn]:
        """Headline values, with the reason if they cannot be compared."""
        return run_columns(self.runs)

    @property
    def like(self) -> list[RunColumn]:
        """Columns that can be compared."""
        return [column for column in self.columns if not column.reason]

    def values(self, column: RunColumn) -> pd.DataFrame:
        """Values of a comparable column: one row per run, one column per detector."""
        return values_of_column(self.runs, column)

    @property
    def detectors(self) -> list[str]:
        """All detectors, in the order of the runs."""
        return list(dict.fromkeys(name for results in self.runs.values() for name in results.detectors))

    def entry(self, column: RunColumn) -> MetricEntry:
        """The metric of a column."""
        entry = entry_of(column.metric)
        assert entry is not None  # columns are of known metrics
        return entry

    def place(self, column: RunColumn) -> int:
        """Position of the metric: FPR of all sets first, then AUROC, then metrics of other sets."""
        metric = column.metric.removeprefix(MEAN)
        return 0 if "fpr" in metric else ["auroc", "unit_test_failures", "id_auroc"].index(metric) + 1

    @cached_property
    def differences(self) -> pd.DataFrame | None:
        """Paired differences to the first run; None if no FPR can be compared, for which the page gives the reason."""
        try:
            return compare_runs(self.runs)
        except InvalidArgumentError:
            return None

    @property
    def conclusions(self) -> list[str]:
        """The results of the comparison in sentences."""
        return [] if self.differences is None else conclusions(self.differences)

    quality = "accuracy"
    """The metric by which networks are compared: one of the table, on the ID set."""

    def quality_of(self, title: str) -> float:
        """Accuracy of a run's network; NaN if unknown."""
        results = self.runs[title]
        row = of_sets(results).get((MODEL, results.id_dataset.name, self.quality))
        return math.nan if row is None else float(row.value)

    def label(self, column: RunColumn) -> str:
        """Title of a column, as in the headline."""
        metric = column.metric.removeprefix(MEAN)
        mean = "mean " if metric != column.metric else ""
        fpr = f"FPR@{share_text(next(iter(self.runs.values())).settings.tpr)}"
        words = {"auroc": "AUROC %", "id_auroc": "ID-AUROC %", "unit_test_failures": "failed unit tests"}
        return f"{column.dataset}: {mean}{words.get(metric, fpr)}"

    @property
    def alerts(self) -> list[str]:
        """Columns that cannot be compared, grouped by reason."""
        lines: dict[str, list[str]] = {}
        for column in self.columns:
            if column.reason:
                lines.setdefault(column.reason, []).append(self.label(column))
        return [f"Not compared: {', '.join(labels)}. Reason: {reason}." for reason, labels in lines.items()]

    @property
    def remarks(self) -> list[str]:
        """Detectors that differ between runs: missing, or with other settings."""
        lines = []
        for name in self.detectors:
            having = [title for title, results in self.runs.items() if name in results.detectors]
            settings = (self.runs[title].run.detector_settings.get(name) for title in having)
            if len(having) < len(self.runs):
                lines.append(f"{name} is in {len(having)} of {len(self.runs)} runs, so it does not count in mean ranks")
            if len({json.dumps(config, sort_keys=True, default=str) for config in settings}) > 1:
                lines.append(f"{name} has different settings in different runs")
        return lines
