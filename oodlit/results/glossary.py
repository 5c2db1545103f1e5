"""The names in the column `metric` and their meaning."""

import math
import re
from dataclasses import dataclass

import numpy as np

from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry
from oodlit.metrics.registry import entries
from oodlit.metrics.settings import Settings, percent
from oodlit.results.info import DatasetInfo

MEAN, POOLED = "mean_", "pooled_"
PREFIXES = {
    MEAN: "mean over the classes of an OOD set, each with the same weight, or over the levels of a pool",
    POOLED: "value over all images of an OOD set together, regardless of class",
}
_SETS = {
    Role.ID: "ID",
    Role.OOD: "OOD",
    Role.SHIFT: "shift",
    Role.UNIT_TEST: "unit tests",
    Role.TRAIN: "training",
    Role.POOL: "pools",
}


def sets_of(entry: MetricEntry) -> str:
    """The kinds of sets that have a metric."""
    return ", ".join(_SETS[role] for role in entry.of)


@dataclass(frozen=True)
class TableMetric:
    """A metric under its name with given settings.

    Args:
        entry: The metric.
        number: The percentage in its name; "" = none.
    """

    entry: MetricEntry
    number: str = ""

    @property
    def name(self) -> str:
        """Name in the column `metric`, without prefix."""
        return self.entry.name + self.number

    @property
    def sets(self) -> str:
        """The kinds of sets that have this metric."""
        return sets_of(self.entry)

    def text(self, settings: Settings) -> str:
        """Meaning of the metric in one line."""
        return self.entry.text.format(share=self.number, limit=percent(settings.unit_test_limit))


def table_metrics(settings: Settings) -> list[TableMetric]:
    """All metrics that a table with these settings can have, in its order.

    Example:
        >>> [metric.name for metric in table_metrics(Settings(tpr=0.9, der=(0.995,)))][:2]
        ['fpr90', 'auroc']
    """
    numbers = {"": [""], "tpr": [percent(settings.tpr)], "der": [percent(share) for share in settings.der]}
    numbers["prior"] = [percent(share) for share in settings.priors]
    return [TableMetric(entry, number) for entry in entries() for number in numbers[entry.numbered_by]]


def glossary(settings: Settings | None = None) -> list[tuple[TableMetric, str]]:
    """Every metric with its meaning; a metric at several thresholds is explained at the first."""
    settings = settings or Settings()
    lines: list[tuple[TableMetric, str]] = []
    for metric in table_metrics(settings):
        same = [known.name for known, _ in lines if known.entry is metric.entry]
        text = f"like {same[0]}, but for {metric.number} %" if same else metric.text(settings)
        lines.append((metric, text))
    return lines


def entry_of(name: str) -> MetricEntry | None:
    """The metric behind a name of the table, without prefix and number; None if unknown.

    Example:
        >>> entry_of("mean_fs_fpr90").better, entry_of("accepted95").better, entry_of("fpr")
        ('lower', '', None)
    """
    metric = _metric_of(name)
    return None if metric is None else metric.entry


def better_of(name: str) -> str:
    """Whether "lower" or "higher" values of a metric are better; "" = neither, or the name is unknown.

    Example:
        >>> better_of("mean_fpr95"), better_of("auroc"), better_of("accepted95")
        ('lower', 'higher', '')
    """
    entry = entry_of(name)
    return "" if entry is None else entry.better


def value_text(value: float, *, is_count: bool = False) -> str:
    """A value of the table for readers: a share in percent with one decimal, a count as an integer, "-" for NaN.

    Example:
        >>> value_text(0.12345), value_text(3.0, is_count=True), value_text(math.nan)
        ('12.3', '3', '-')
    """
    return "-" if math.isnan(value) else f"{value:.0f}" if is_count else f"{100 * value:.1f}"


def three_digits(value: float) -> str:
    """A share in percent with three significant digits, for values that one decimal would make equal.

    Example:
        >>> three_digits(0.12345), three_digits(0.00012345), three_digits(1.0), three_digits(math.nan)
        ('12.3', '0.0123', '100', '-')
    """
    text = np.format_float_positional(100 * value, 3, unique=False, fractional=False).rstrip(".")
    return "-" if math.isnan(value) else text


def headline_metrics(info: DatasetInfo, settings: Settings) -> tuple[str, ...]:
    """The metrics that summarize a detector on a data set; for sets with classes, means over classes.

    Example:
        >>> headline_metrics(DatasetInfo("far", Role.OOD), Settings())
        ('fpr95', 'auroc')
    """
    if info.role in (Role.OOD, Role.POOL):
        mean = MEAN if info.class_names else ""
        return mean + settings.fpr_name, f"{mean}auroc"
    return {Role.UNIT_TEST: ("unit_test_failures",), Role.ID: ("id_auroc",)}.get(info.role, ())


def meaning(name: str, settings: Settings) -> str:
    """Explain a metric of the table in one sentence; empty if the name is unknown.

    Example:
        >>> meaning("aurc", Settings())
        'Share of errors among the k images with the highest scores, averaged over all k; lower is better.'
    """
    if (metric := _metric_of(name)) is None:
        return ""
    text, better = metric.text(settings), metric.entry.better
    return f"{text[0].upper()}{text[1:]}{f'; {better} is better' if better else ''}."


def _metric_of(name: str) -> TableMetric | None:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    number = (re.findall(r"\d[\d.]*$", name) or [""])[0]
    for entry in entries():
        own = number if entry.numbered_by else ""
        if name == entry.name + own and bool(own) == bool(entry.numbered_by):
            return TableMetric(entry, own)
    return None
