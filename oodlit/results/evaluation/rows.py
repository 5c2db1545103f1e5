"""Lines of the tidy table, and what has to be said about them."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from oodlit.metrics.intervals import wilson_interval

__all__ = ["COLUMNS", "Evaluation", "Place", "Row", "Rows"]

COLUMNS = ("detector", "dataset", "ood_class", "metric", "value", "n_id", "n_ood", "ci_low", "ci_high", "rule")


class Place(NamedTuple):
    """What a value belongs to."""

    detector: str
    dataset: str
    ood_class: str = ""


class Row(NamedTuple):
    """One line of the table."""

    detector: str
    dataset: str
    ood_class: str
    metric: str
    value: float
    n_id: int
    n_ood: int
    ci_low: float = math.nan
    ci_high: float = math.nan
    rule: str = ""


@dataclass
class Evaluation:
    """The table and what has to be said about it.

    Args:
        table: The tidy table.
        thresholds: Acceptance thresholds by detector and metric.
        undefined: One entry per NaN value, with its reason.
        notes: What was not computed at all, and why.
    """

    table: pd.DataFrame
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    undefined: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Rows:
    """Collects rows in their order; a NaN value always comes with its reason.

    Args:
        confidence: Nominal coverage of the Wilson intervals of shares.

    Example:
        >>> rows = Rows(0.95)
        >>> rows.share(Place("msp", "near", "seven"), "fpr95", 3, 31, n_id=100, n_ood=31, rule="attained")
        >>> rows.frame().round(3)[["metric", "value", "ci_low", "ci_high"]].values.tolist()
        [['fpr95', 0.097, 0.033, 0.249]]
    """

    def __init__(self, confidence: float) -> None:
        """Start empty."""
        self.confidence = confidence
        self.rows: list[Row] = []
        self.undefined: list[dict[str, str]] = []
        self._position: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def add(
        self,
        place: Place,
        metric: str,
        value: float,
        *,
        n_id: int,
        n_ood: int,
        interval: tuple[float, float] = (math.nan, math.nan),
        rule: str = "",
        reason: str | None = None,
    ) -> None:
        """Append one value; `reason` says why it is NaN, if it is."""
        self._position[(*place, metric)] = len(self.rows)
        self.rows.append(Row(*place, metric, value, n_id, n_ood, *interval, rule))
        if math.isnan(value):
            names = dict(zip(COLUMNS[:4], (*place, metric), strict=True))
            self.undefined.append(names | {"reason": reason or "the definition has no answer"})

    def share(
        self, place: Place, metric: str, count: int, total: int, *, n_id: int, n_ood: int, rule: str = ""
    ) -> None:
        """Append the share count / total with its Wilson interval."""
        if total == 0:
            self.add(place, metric, math.nan, n_id=n_id, n_ood=n_ood, rule=rule, reason="there is no image")
            return
        interval = wilson_interval(count, total, confidence=self.confidence)
        self.add(place, metric, count / total, n_id=n_id, n_ood=n_ood, interval=interval, rule=rule)

    def value(self, place: Place, metric: str) -> float | None:
        """The value of a row, None if there is no such row."""
        position = self._position.get((*place, metric))
        return None if position is None else self.rows[position].value

    def row(self, place: Place, metric: str) -> Row:
        """A row that exists."""
        return self.rows[self._position[(*place, metric)]]

    def set_interval(self, place: Place, metric: str, low: float, high: float) -> None:
        """Give an interval to a row that exists."""
        position = self._position[(*place, metric)]
        self.rows[position] = self.rows[position]._replace(ci_low=low, ci_high=high)

    def frame(self) -> pd.DataFrame:
        """The table."""
        return pd.DataFrame(self.rows, columns=list(COLUMNS)).astype(
            dict.fromkeys(("n_id", "n_ood"), "int64") | dict.fromkeys(("value", "ci_low", "ci_high"), "float64")
        )
