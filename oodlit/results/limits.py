"""Limits for the values of a run: which of them are crossed, by how much, and by which images."""

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from oodlit.base.fractions import exact_number
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.metrics.settings import Settings
from oodlit.results.glossary import MEAN, POOLED, entry_of, table_metrics
from oodlit.results.names import MODEL
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import severities
from oodlit.roles import UNKNOWN_CLASSES, Role

ANY = "*"
"""Stands for every detector, or for every class of a data set."""
MAX_KEYS = 5
MAX_VALUES = 8
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(
    r"(?P<detector>[^:]+):\s*(?P<metric>\S+)(?:\s+on\s+(?P<place>.+?))?\s*(?P<sign>[<>]=?)\s*(?P<number>\S+)"
)


@dataclass(frozen=True)
class Limit:
    """A condition that a value must not fulfil.

    Args:
        detector: Name of a detector, "model" for values of the classifier alone, or "*" for every detector.
        metric: As in the column `metric` of the table.
        sign: One of > >= < <=.
        number: What the value is compared with, as exact as it was written.
        dataset: Name of a data set; "" = every set that has the metric, of OOD sets without classes the plain one in
            place of a mean.
        ood_class: Name of a class or unit test; "*" = all of a set; "" = the set, or all classes where it has none.

    Example:
        >>> print(Limit.of("msp: fpr95 on near/seven > 0.25"))
        msp: fpr95 on near/seven > 0.25
    """

    detector: str
    metric: str
    sign: str
    number: float
    dataset: str = ""
    ood_class: str = ""

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Read `DETECTOR: METRIC [on DATASET[/CLASS]] SIGN NUMBER`; a number may be in percent.

        Raises:
            InvalidArgumentError: It is not of this form.
        """
        found = _FORM.fullmatch(text.strip())
        number = found and exact_number(found["number"].removesuffix("%"))
        if found is None or number is None:
            raise InvalidArgumentError(
                f"limit {text!r}: 'DETECTOR: METRIC [on DATASET[/CLASS]] > NUMBER' is needed, with > >= < or <=, such"
                " as 'mahalanobis: unit_test_failures > 0' or 'msp: mean_fpr95 on ninco > 0.7'"
            )
        value = float(number / 100 if found["number"].endswith("%") else number)
        dataset, _, ood_class = (found["place"] or "").partition("/")
        return cls(found["detector"].strip(), found["metric"], found["sign"], value, dataset.strip(), ood_class.strip())

    def check_names(self, detectors: Iterable[str], datasets: Iterable[str], settings: Settings) -> None:
        """Refuse names that a run cannot have, before it begins.

        Raises:
            UnknownNameError: No such detector, metric or data set.
        """
        detectors, datasets = list(detectors), list(datasets)
        if self.detector not in (ANY, MODEL, *detectors):
            raise self._unknown("detector", self.detector, [*detectors, MODEL, ANY])
        plain = {metric.name for metric in table_metrics(settings)}
        if self.metric.removeprefix(MEAN).removeprefix(POOLED) not in plain:
            known = {prefix + name for prefix in ("", MEAN, POOLED) for name in plain}
            raise self._unknown("metric", self.metric, known)
        if self.dataset and self.dataset not in datasets:
            raise self._unknown("data set", self.dataset, datasets)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        return UnknownNameError(f"limit '{self}': {UnknownNameError.of(kind, name, known)}")

    def __str__(self) -> str:
        """As it is written."""
        place = "/".join(filter(None, (self.dataset, self.ood_class)))
        return f"{self.detector}: {self.metric}{f' on {place}' if place else ''} {self.sign} {self.number:.12g}"


@dataclass(frozen=True)
class Crossing:
    """A value that fulfils the condition of a limit.

    Args:
        limit: The limit.
        row: The row of the table.
        classes: Names of the classes or unit tests that it comes from, where it is a count of them.
        keys: Images that made it so: accepted ones, or wrongly classified ones.
    """

    limit: Limit
    row: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Value, interval, limit and images."""
        row = self.row
        place = "/".join(filter(None, (row["dataset"], row["ood_class"])))
        ends = f" [{row['ci_low']:.4g}, {row['ci_high']:.4g}]" if math.isfinite(row["ci_low"]) else ""
        text = f"{row['detector']}: {row['metric']} on {place} is {row['value']:.4g}{ends}, limit {self.limit.sign}"
        text += f" {self.limit.number:.12g}"
        if self.classes:
            text += f"; {', '.join(self.classes)}"
        if self.keys:
            more = f" and {len(self.keys) - MAX_KEYS} more" if len(self.keys) > MAX_KEYS else ""
            text += f"; images: {', '.join(self.keys[:MAX_KEYS])}{more}"
        return text


def crossings(results: RunResults, limits: Iterable[Limit | str]) -> list[Crossing]:
    """The values of a run that cross limits.

    Args:
        results: The run.
        limits: Conditions that no value must fulfil, also as text, see `Limit.of`.

    Raises:
        UnknownNameError: A limit names what the run does not have; says why a detector is not among its results.
        InvalidArgumentError: A value that is asked for is undefined, which is no pass; or a text is no limit.

    Example:
        >>> from oodlit.results import DatasetInfo, Results
        >>> from oodlit.roles import Role
        >>> frame = pd.DataFrame({"key": ["val/0", "val/1", "near/0"], "dataset": ["val", "val", "near"],
        ...     "group": [-1, -1, 0], "label": [0, 0, -1], "prediction": [0, 1, 1], "msp": [0.9, 0.5, 0.7]})
        >>> datasets = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("seven",))]
        >>> results = Results.from_scores(frame, datasets, ["msp"], bootstrap=0)
        >>> print(*crossings(results, ["msp: fpr95 on near/seven > 10%", "msp: mean_auroc < 0.5"]))
        msp: fpr95 on near/seven is 1 [0.2065, 1], limit > 0.1; images: near/0
    """
    found = []
    for given in limits:
        limit = Limit.of(given) if isinstance(given, str) else given
        rows = held(results, limit)
        crossed = [row for row in rows if _COMPARE[limit.sign](row["value"], limit.number)]
        found += [Crossing(limit, row, *_cause(results, row)) for row in crossed]
    return found


def held(results: RunResults, limit: Limit) -> list[dict[str, Any]]:
    """The rows of the table whose values are held to a limit, at least one; see `crossings` for the errors."""
    rows = _rows(results, limit)
    if undefined := [row for row in rows if math.isnan(row["value"])]:
        raise InvalidArgumentError(_undefined(results, limit, undefined[0]))
    return rows


def held_text(results: RunResults, limit: Limit) -> str:
    """A line on the values that are held to a limit, those nearest to it, or furthest beyond it, first.

    Example:
        >>> from oodlit.results import DatasetInfo, Results
        >>> from oodlit.roles import Role
        >>> frame = pd.DataFrame({"key": ["val/0", "far/0", "far/1"], "dataset": ["val", "far", "far"], "group": -1,
        ...     "label": -1, "prediction": -1, "msp": [0.9, 0.5, 0.9]})
        >>> datasets = [DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD)]
        >>> results = Results.from_scores(frame, datasets, ["msp"], bootstrap=0)
        >>> held_text(results, Limit.of("msp: mean_fpr95 > 0.7"))
        'msp: mean_fpr95 > 0.7 holds 1 value: far 50 % (fpr95)'
    """
    rows = sorted(held(results, limit), key=lambda row: row["value"], reverse=limit.sign.startswith(">"))
    texts = []
    for row in rows[:MAX_VALUES]:
        entry, value = entry_of(row["metric"]), row["value"]
        place = "/".join(filter(None, (row["dataset"], row["ood_class"])))
        text = f"{value:.4g}" if entry is None or entry.is_count else f"{100 * value:.4g} %"
        own = f" ({row['metric']})" if row["metric"] != limit.metric else ""
        texts.append(f"{row['detector'] + ': ' if limit.detector == ANY else ''}{place} {text}{own}")
    more = f" and {len(rows) - MAX_VALUES} more" if len(rows) > MAX_VALUES else ""
    return f"{limit} holds {len(rows)} value{'s' if len(rows) > 1 else ''}: {', '.join(texts)}{more}"


def read_limits(file: str | os.PathLike[str]) -> list[Limit]:
    """The limits of a YAML file: a list under `fail_if`.

    Raises:
        InvalidArgumentError: The file cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"limits {file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise InvalidArgumentError(f"limits {file}: no YAML: {' '.join(str(error).split())}") from error
    entries = content.get("fail_if") if isinstance(content, dict) and set(content) == {"fail_if"} else None
    if not isinstance(entries, list) or not entries:
        raise InvalidArgumentError(
            f"limits {file}: one list, fail_if, is needed, with lines such as 'msp: mean_fpr95 > 0.7'"
        )
    # Without quotes, YAML takes the colon for that of a mapping.
    texts = [
        ": ".join(map(str, *entry.items())) if isinstance(entry, dict) and len(entry) == 1 else entry
        for entry in entries
    ]
    return [Limit.of(str(text)) for text in texts]


def _rows(results: RunResults, limit: Limit) -> list[dict[str, Any]]:
    """Rows of the table that a limit is about; at least one."""
    reasons = results.run.not_applicable
    if limit.detector in reasons and limit.detector not in results.detectors:
        raise UnknownNameError(
            f"limit '{limit}': detector {limit.detector!r} is not among the results: it {reasons[limit.detector]}"
        )
    limit.check_names(results.detectors, [info.name for info in results.datasets], results.settings)
    table = results.table[_is_meant(results, limit)]
    if limit.detector != ANY:
        table = table[table["detector"] == limit.detector]
    if limit.dataset:
        table = table[table["dataset"] == limit.dataset]
    of_sets = table[table["ood_class"] == ""]
    if limit.ood_class == ANY:
        table = table[table["ood_class"] != ""]
    elif limit.ood_class:
        known = table["ood_class"].unique()
        if limit.ood_class not in known:
            raise limit._unknown("class", limit.ood_class, [name for name in known if name])
        table = table[table["ood_class"] == limit.ood_class]
    else:
        table = table[(table["ood_class"] == "") | ~table["dataset"].isin(of_sets["dataset"])]
    if table.empty:
        whole = results.table[results.table["metric"] == limit.metric]
        there = sorted({f"{row.detector}: {row.metric} on {row.dataset}" for row in whole.itertuples()})
        raise UnknownNameError(
            f"limit '{limit}': this run has no such value; of {limit.metric} it has {', '.join(there[:8]) or 'none'}"
        )
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _is_meant(results: RunResults, limit: Limit) -> "pd.Series[bool]":
    """Which rows have the metric of a limit.

    Where no set is named, an OOD set without classes is held to a limit of the mean by its plain value, as it stands
    beside the means of the others in every table of headlines: to leave it out would let it pass unseen.
    """
    table = results.table
    meant = table["metric"] == limit.metric
    plain = limit.metric.removeprefix(MEAN).removeprefix(POOLED)
    if limit.dataset or plain == limit.metric:
        return meant
    flat = {info.name for info in results.datasets if info.role is Role.OOD} - set(table.loc[meant, "dataset"])
    return meant | (table["dataset"].isin(flat) & (table["metric"] == plain) & (table["ood_class"] == ""))


def _undefined(results: RunResults, limit: Limit, row: Mapping[str, Any]) -> str:
    place = ("detector", "dataset", "ood_class", "metric")
    reasons = [one.reason for one in results.run.undefined if all(getattr(one, n) == row[n] for n in place)]
    where = "/".join(filter(None, (row["dataset"], row["ood_class"])))
    return (
        f"limit '{limit}': the value of {row['detector']} on {where} is undefined"
        f" ({reasons[0] if reasons else 'no reason is recorded'}), and an undefined value passes nothing"
    )


def _cause(results: RunResults, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Classes and images that make a value what it is; none for metrics of whole rankings."""
    entry, info = entry_of(row["metric"]), results.dataset(row["dataset"])
    rows = results.scores[results.scores["dataset"] == info.name]
    if info.role is Role.POOL or row["ood_class"]:
        names = _of_level(results, row) if info.role is Role.POOL else {row["ood_class"]}
        rows = rows[rows["group"].isin([group for group, name in enumerate(info.class_names) if name in names])]
    classes: Sequence[str] = ()
    if entry is None:
        return (), ()
    if entry.name == "accuracy":
        return (), _keys(rows[(rows["label"] >= 0) & (rows["prediction"] != rows["label"])])
    if info.role not in UNKNOWN_CLASSES or not entry.by_threshold or "training" in entry.needs:
        return (), ()
    if entry.is_count:
        classes = failed_tests(results, row["detector"], info.name)
        rows = rows[rows["group"].isin([info.class_names.index(name) for name in classes])]
    accepted = rows[row["detector"]].astype(float) >= results.threshold(row["detector"])
    return tuple(classes), _keys(rows[accepted])


def _of_level(results: RunResults, row: Mapping[str, Any]) -> set[str]:
    """Classes of a pool that are in the level of a row, or in any where the row is of all levels."""
    found = severities(results, row["dataset"], row["detector"])
    wanted = row["ood_class"]
    is_in = [wanted in names.split() if wanted else bool(names) for names in found["levels"]]
    return {str(name) for name in found["ood_class"][is_in]}


def failed_tests(results: RunResults, detector: str, dataset: str) -> list[str]:
    """Names of the unit tests of a set that a detector fails."""
    table, settings = results.table, results.settings
    rows = table[
        (table["detector"] == detector) & (table["dataset"] == dataset) & (table["metric"] == settings.fpr_name)
    ]
    rows = rows[(rows["ood_class"] != "") & (rows["value"] > settings.unit_test_limit)]
    return [str(name) for name in rows["ood_class"]]


def _keys(rows: pd.DataFrame) -> tuple[str, ...]:
    return tuple(sorted(rows["key"]))
