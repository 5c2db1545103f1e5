"""Rows of the tidy table, and reasons for undefined values."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from oodlit.metrics.entry import Value
from oodlit.results.record_parts import PoolRecord, UndefinedValue

COLUMNS = ("detector", "dataset", "ood_class", "metric", "value", "n_id", "n_ood", "ci_low", "ci_high", "rule")


class Address(NamedTuple):
    """Address of a value: a detector or the classifier, a data set, and optionally one of its groups."""

    detector: str
    dataset: str
    ood_class: str = ""


class TableRow(NamedTuple):
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
    """The table and remarks about it.

    Args:
        table: The tidy table.
        thresholds: Acceptance thresholds by detector and metric.
        undefined: One entry per NaN value, with its reason.
        notes: What was not computed at all, and why.
        pools: What identifies each pool.
    """

    table: pd.DataFrame
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    undefined: list[UndefinedValue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pools: dict[str, PoolRecord] = field(default_factory=dict)


class TableRows:
    """Rows in their order, and a reason for every NaN value.

    Example:
        >>> rows = TableRows()
        >>> rows.add(Address("msp", "near", "seven"), "fpr95", Value(0.25), n_id=100, n_ood=4, rule="attained")
        >>> rows.frame()[["metric", "value", "n_ood"]].values.tolist()
        [['fpr95', 0.25, 4]]
    """

    def __init__(self) -> None:
        """Start empty."""
        self.rows: dict[tuple[str, ...], TableRow] = {}
        self.undefined: list[UndefinedValue] = []

    def add(self, address: Address, metric: str, value: Value, *, n_id: int, n_ood: int, rule: str = "") -> None:
        """Append one value."""
        key = (*address, metric)
        self.rows[key] = TableRow(*address, metric, value.value, n_id, n_ood, *value.interval, rule)
        if math.isnan(value.value):
            reason = value.reason or "undefined by its definition"
            self.undefined.append(UndefinedValue(*key, reason))

    def set_interval(self, address: Address, metric: str, low: float, high: float) -> None:
        """Set the interval of an existing row."""
        key = (*address, metric)
        self.rows[key] = self.rows[key]._replace(ci_low=low, ci_high=high)

    def undefine(self, metrics: Collection[str], reason: str) -> None:
        """Replace the values of some metrics by NaN; those without a value keep their reason."""
        for key, row in self.rows.items():
            if row.metric in metrics and not math.isnan(row.value):
                self.rows[key] = row._replace(value=math.nan, ci_low=math.nan, ci_high=math.nan)
                self.undefined.append(UndefinedValue(*row[:4], reason))

    def frame(self) -> pd.DataFrame:
        """The table."""
        return pd.DataFrame(list(self.rows.values()), columns=list(COLUMNS)).astype(
            dict.fromkeys(("n_id", "n_ood"), "int64") | dict.fromkeys(("value", "ci_low", "ci_high"), "float64")
        )
