"""What a run left, and how to find something in it: the ground on which views, comparisons and figures stand."""

import math
from dataclasses import dataclass, field

import pandas as pd

from oodlit.errors import UnknownNameError
from oodlit.metrics.settings import Settings
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo
from oodlit.results.names import MODEL, metric_names
from oodlit.results.run_record import ImageRunRecord
from oodlit.roles import Role


@dataclass(frozen=True, eq=False)
class RunResults:
    """Per-image scores, the tidy table of metrics, and the description of a run.

    Whoever looks at results takes this class. `Results` adds what makes, saves and shows them.

    Args:
        scores: One row per image: `key, dataset, group, label, prediction` and one float column per detector;
            -1 = none. Sorted by data set and key, whatever the order of arrival.
        table: One row per value: `detector, dataset, ood_class, metric, value, n_id, n_ood, ci_low, ci_high, rule`.
        run: What else is known about the run; see `ImageRunRecord`.
        estimates: What the estimation images of pools left, one row per class and detector: `dataset, ood_class,
            detector, confidence, severity, standard_error, n_estimation, digest`; None without a pool.
    """

    scores: pd.DataFrame
    table: pd.DataFrame
    run: ImageRunRecord = field(default_factory=ImageRunRecord)
    estimates: pd.DataFrame | None = None

    @property
    def datasets(self) -> tuple[DatasetInfo, ...]:
        """The streams of the run."""
        return tuple(self.run.datasets)

    @property
    def detectors(self) -> tuple[str, ...]:
        """Names of the detectors."""
        return tuple(self.run.detectors)

    @property
    def settings(self) -> Settings:
        """How the table was computed."""
        return self.run.settings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What makes the numbers doubtful, or worth believing: a classifier at chance, class lists that differ, ..."""
        return tuple(self.run.findings)

    def dataset(self, name: str) -> DatasetInfo:
        """The data set of that name.

        Raises:
            UnknownNameError: There is none.
        """
        known = {info.name: info for info in self.datasets}
        if name not in known:
            raise UnknownNameError.of("data set", name, known)
        return known[name]

    def images(self, dataset: str) -> pd.DataFrame:
        """The rows of `scores` on which the values of a data set rest: of chosen classes only, where some were chosen.

        Raises:
            UnknownNameError: There is no such data set.
        """
        info, chosen = self.dataset(dataset), self.settings.classes.get(dataset)
        rows = self.scores[self.scores["dataset"] == info.name]
        return rows[rows["group"].isin([info.class_names.index(name) for name in chosen])] if chosen else rows

    def value(self, metric: str, *, dataset: str, detector: str = MODEL, ood_class: str = "") -> float:
        """One value of the table.

        Raises:
            UnknownNameError: The table has no such row.
        """
        table = self.table
        rows = table[
            (table["metric"] == metric)
            & (table["dataset"] == dataset)
            & (table["detector"] == detector)
            & (table["ood_class"] == ood_class)
        ]
        if rows.empty:
            names = [n for n in metric_names(table) if n.startswith(f"{dataset}/{detector}/")] or metric_names(table)
            raise UnknownNameError.of("value", "/".join(filter(None, (dataset, detector, metric, ood_class))), names)
        return float(rows["value"].iloc[0])

    def metrics_by_name(self) -> dict[str, float]:
        """All values under `<dataset>/<detector>/<metric>` and, per class, `<dataset>/<detector>/<metric>/<class>`.

        What loggers receive. Characters other than letters, digits, `_`, `.` and `-` become `_`. Undefined values are
        NaN. Values of the classifier alone have `model` in place of the detector.
        """
        return dict(zip(metric_names(self.table), self.table["value"].tolist(), strict=True))

    def threshold(self, detector: str) -> float:
        """The score from which on a detector accepts an image; NaN if there was no ID image to take it from.

        Raises:
            UnknownNameError: There is no such detector.
        """
        self.check_detectors(detector)
        return float(self.run.thresholds.get(detector, {}).get(self.settings.fpr_name, math.nan))

    def accepted(self, detector: str, *, limit: int = 12) -> tuple[pd.DataFrame, int]:
        """OOD images that a detector accepts, the highest score first.

        Args:
            detector: Name of the score column.
            limit: Largest number of rows.

        Returns:
            Rows of `scores`, and the number of all accepted OOD images. Equal scores are in the order of keys.

        Raises:
            UnknownNameError: There is no such detector.
        """
        threshold = self.threshold(detector)
        names = [info.name for info in self.datasets if info.role is Role.OOD]
        rows = self.scores[self.scores["dataset"].isin(names)]
        rows = rows[rows[detector].astype(float) >= threshold]
        return rows.sort_values([detector, "key"], ascending=[False, True], kind="stable").head(limit), len(rows)

    def check_detectors(self, *names: str) -> None:
        """Raise unless there are detectors of these names.

        Raises:
            UnknownNameError: There is no such detector.
        """
        for name in names:
            if name not in self.detectors:
                raise UnknownNameError.of("detector in these results", name, self.detectors)

    def __repr__(self) -> str:
        """Counts, never values."""
        return (
            f"{type(self).__name__}({len(self.scores)} images, {len(self.detectors)} detectors,"
            f" {len(self.datasets)} data sets, {len(self.table)} values)"
        )
