"""The common base of results of images and of boxes: data sets, detectors, and values of the table."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pandas as pd

from oodlit.base.errors import UnknownNameError
from oodlit.base.text.resolve import resolve
from oodlit.results.display_names import display_names
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo, id_dataset
from oodlit.results.names import MODEL, metric_names
from oodlit.results.run_record import RunRecord


class AnyResults(ABC):
    """Results of a run over images or boxes.

    Attributes:
        table: One row per value, with the columns `detector, dataset, ood_class, metric, value, n_id, n_ood, ci_low,
            ci_high, rule` and others.
        run: What else is known about the run.
    """

    table: pd.DataFrame
    run: RunRecord

    @property
    def datasets(self) -> tuple[DatasetInfo, ...]:
        """The data sets of the run."""
        return tuple(self.run.datasets)

    @property
    def id_dataset(self) -> DatasetInfo:
        """The data set with role ID."""
        return id_dataset(self.datasets)

    @property
    def detectors(self) -> tuple[str, ...]:
        """Names of the detectors."""
        return tuple(self.run.detectors)

    @property
    @abstractmethod
    def settings(self) -> Any:
        """How the table was computed."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What makes the numbers doubtful or confirms them: a classifier at chance, class lists that differ, ..."""
        return tuple(self.run.findings)

    def dataset(self, name: str) -> DatasetInfo:
        """Return the data set of that name.

        Raises:
            UnknownNameError: There is none.
        """
        known = {info.name: info for info in self.datasets}
        UnknownNameError.check("data set", name, known)
        return known[name]

    def row(self, metric: str, *, dataset: str, detector: str = MODEL, ood_class: str = "") -> dict[str, Any]:
        """Return one row of the table, by the names of its columns.

        Raises:
            UnknownNameError: The table has no such row.
        """
        detector = resolve("detector in these results", detector, {MODEL: MODEL, **display_names(self.run)})
        wanted = {"metric": metric, "dataset": dataset, "detector": detector, "ood_class": ood_class}
        rows = self.table[np.logical_and.reduce([self.table[name] == value for name, value in wanted.items()])]
        if rows.empty:
            known = metric_names(self.table)
            names = [name for name in known if name.startswith(f"{dataset}/{detector}/")] or known
            raise UnknownNameError.of("value", "/".join(filter(None, (dataset, detector, metric, ood_class))), names)
        return dict(zip(map(str, rows.columns), rows.iloc[0].tolist(), strict=True))

    def value(self, metric: str, *, dataset: str, detector: str = MODEL, ood_class: str = "") -> float:
        """Return one value of the table.

        Raises:
            UnknownNameError: The table has no such row.
        """
        return float(self.row(metric, dataset=dataset, detector=detector, ood_class=ood_class)["value"])

    def metrics_by_name(self) -> dict[str, float]:
        """All values under `<dataset>/<detector>/<metric>` and, per class, `<dataset>/<detector>/<metric>/<class>`.

        Loggers receive these. Characters other than letters, digits, `_`, `.` and `-` become `_`. Undefined values are
        NaN. Values that belong to no detector have `model` in its place.
        """
        return dict(zip(metric_names(self.table), self.table["value"].tolist(), strict=True))

    def resolve_detectors(self, *names: str) -> list[str]:
        """Return the names of detectors in these results; display names are accepted, see `resolve`.

        Raises:
            UnknownNameError: There is no such detector.
        """
        known = display_names(self.run)
        return [resolve("detector in these results", name, known) for name in names]

    @abstractmethod
    def threshold(self, detector: str) -> float:
        """Return the score that separates what a detector accepts from what it rejects.

        Raises:
            UnknownNameError: There is no such detector.
        """
