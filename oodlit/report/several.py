"""What the sections that compare several runs look at."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from oodlit.report.headline import share_text
from oodlit.results import Results, RunColumn, run_columns
from oodlit.results.comparing.several import values_of_column
from oodlit.results.glossary import MEAN
from oodlit.results.names import distinct
from oodlit.results.plots.select import model_name


def titles(results: Mapping[str, Results]) -> dict[str, str]:
    """What the page calls each run: the name of its network, with that of the run where several have one name.

    Titles are distinct, whatever the names are.
    """
    names = {name: model_name(result) or name for name, result in results.items()}
    shared = Counter(names.values())
    found = (title if shared[title] == 1 else f"{title} ({name})" for name, title in names.items())
    return dict(zip(names, distinct(found), strict=True))


Place = tuple[str, str, str]
"""Detector, data set, metric."""


def of_sets(results: Results) -> dict[Place, Any]:
    """Rows of the table that are of whole sets."""
    rows = results.table[results.table["ood_class"] == ""]
    return {(str(row.detector), str(row.dataset), str(row.metric)): row for row in rows.itertuples(index=False)}


@dataclass(frozen=True)
class Several:
    """The runs of a page that are compared.

    Args:
        runs: Results by title.
        links: Where the details of a run are, by title.
    """

    runs: Mapping[str, Results]
    links: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> list[RunColumn]:
        """Headline values, with the reason where they cannot be compared."""
        return run_columns(self.runs)

    @property
    def like(self) -> list[RunColumn]:
        """Those that can be compared."""
        return [column for column in self.columns if not column.reason]

    def values(self, column: RunColumn) -> pd.DataFrame:
        """Values of a column that can be compared: one row per run, one column per detector."""
        return values_of_column(self.runs, column)

    @property
    def detectors(self) -> list[str]:
        """All detectors, in the order in which the runs name them."""
        return list(dict.fromkeys(name for results in self.runs.values() for name in results.detectors))

    def label(self, column: RunColumn) -> str:
        """A column in the words of the headline."""
        metric = column.metric.removeprefix(MEAN)
        mean = "mean " if metric != column.metric else ""
        fpr = f"FPR@{share_text(next(iter(self.runs.values())).settings.tpr)}"
        words = {"auroc": "AUROC %", "id_auroc": "ID-AUROC %", "unit_test_failures": "failed unit tests"}
        return f"{column.dataset}: {mean}{words.get(metric, fpr)}"

    @property
    def alerts(self) -> list[str]:
        """What was left out, and why, once for all columns of one reason."""
        lines: dict[str, list[str]] = {}
        for column in self.columns:
            if column.reason:
                lines.setdefault(column.reason, []).append(self.label(column))
        return [f"Not compared: {', '.join(labels)}. Reason: {reason}." for reason, labels in lines.items()]

    @property
    def remarks(self) -> list[str]:
        """Detectors that are not the same in all runs: missing, or with other settings."""
        lines = []
        for name in self.detectors:
            having = [title for title, results in self.runs.items() if name in results.detectors]
            forms = {json.dumps(_settings(self.runs[title], name), sort_keys=True, default=str) for title in having}
            if len(having) < len(self.runs):
                lines.append(f"{name} is in {len(having)} of {len(self.runs)} runs, and takes no part in mean ranks")
            if len(forms) > 1:
                lines.append(f"{name} has other settings from run to run")
        return lines


def _settings(results: Results, detector: str) -> Any:
    return results.run.detector_settings.get(detector)
