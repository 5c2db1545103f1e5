"""The data of a run with basic look-ups, which views, comparisons and figures share."""

import math
from dataclasses import dataclass, field

import pandas as pd

from oodlit.base.roles import Role
from oodlit.base.text.singular import singular
from oodlit.metrics.settings import Settings
from oodlit.results.any_results import AnyResults
from oodlit.results.files.storage import ESTIMATES
from oodlit.results.run_record import ImageRunRecord


@dataclass(frozen=True, eq=False)
class RunResults(AnyResults):
    """Per-image scores, the tidy table of metrics, and the description of a run.

    Functions that read results accept this class. `Results` adds how they are computed, saved and shown.

    Args:
        scores: One row per image: `key, dataset, group, label, prediction` and one float column per detector;
            -1 = none. Sorted by data set and key.
        table: One row per value: `detector, dataset, ood_class, metric, value, n_id, n_ood, ci_low, ci_high, rule`.
        run: What else is known about the run; see `ImageRunRecord`.
        estimates: Severities from the estimation images of pools, one row per class and detector: `dataset, ood_class,
            detector, confidence, severity, standard_error, n_estimation, digest`; None without a pool.
    """

    scores: pd.DataFrame
    table: pd.DataFrame
    run: ImageRunRecord = field(default_factory=ImageRunRecord)
    estimates: pd.DataFrame | None = None

    @property
    def parts(self) -> dict[str, pd.DataFrame]:
        """Further tables by name of the file."""
        return {} if self.estimates is None else {ESTIMATES: self.estimates}

    @property
    def settings(self) -> Settings:
        """How the table was computed."""
        return self.run.settings

    def images(self, dataset: str) -> pd.DataFrame:
        """The rows of `scores` behind the values of a data set, restricted to the classes chosen in the settings.

        Raises:
            UnknownNameError: There is no such data set.
        """
        info, chosen = self.dataset(dataset), self.settings.classes.get(dataset)
        rows = self.scores[self.scores["dataset"] == info.name]
        return rows[rows["group"].isin([info.class_names.index(name) for name in chosen])] if chosen else rows

    def threshold(self, detector: str) -> float:
        """The lowest score that a detector accepts; NaN without ID images.

        Raises:
            UnknownNameError: There is no such detector.
        """
        (detector,) = self.resolve_detectors(detector)
        return float(self.run.thresholds.get(detector, {}).get(self.settings.fpr_name, math.nan))

    def accepted(self, detector: str, *, limit: int = 12) -> tuple[pd.DataFrame, int]:
        """OOD images that a detector accepts, in descending order of scores.

        Args:
            detector: Name of the score column.
            limit: Largest number of rows.

        Returns:
            Rows of `scores`, and the number of all accepted OOD images. Equal scores are in the order of keys.

        Raises:
            UnknownNameError: There is no such detector.
        """
        threshold, (detector,) = self.threshold(detector), self.resolve_detectors(detector)
        names = [info.name for info in self.datasets if info.role is Role.OOD]
        rows = self.scores[self.scores["dataset"].isin(names)]
        rows = rows[rows[detector].astype(float) >= threshold]
        return rows.sort_values([detector, "key"], ascending=[False, True], kind="stable").head(limit), len(rows)

    def __repr__(self) -> str:
        """Counts, never values."""
        return singular(
            f"{type(self).__name__}({len(self.scores)} images, {len(self.detectors)} detectors, {len(self.datasets)}"
            f" data sets, {len(self.table)} values)"
        )
