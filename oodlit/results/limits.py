"""Limits for the values of a run: which are crossed, by how much, and by which images."""

import math
import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.fractions import exact_number
from oodlit.base.roles import UNKNOWN_CLASSES, Role
from oodlit.base.text.readable import readable
from oodlit.base.text.resolve import resolve
from oodlit.base.yaml_files import load_yaml
from oodlit.metrics.settings import Settings
from oodlit.results.display_names import display_names
from oodlit.results.evaluation.exact import as_exact, exact_value
from oodlit.results.glossary import MEAN, POOLED, entry_of, table_metrics
from oodlit.results.names import MODEL, some
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import severities

ANY = "*"
"""Wildcard for every detector, or for every class of a data set."""
MAX_KEYS = 5
MAX_VALUES = 8
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(
    r"(?P<detector>[^:]+):\s*(?P<metric>\S+)(?:\s+on\s+(?P<place>.+?))?\s*(?P<sign>[<>]=?)\s*(?P<number>\S+)"
)


@dataclass(frozen=True)
class Limit:
    """A condition that no value of a run may fulfill.

    Args:
        detector: Name of a detector, "model" for values of the classifier alone, or "*" for every detector that was
            asked for.
        metric: As in the column `metric` of the table.
        sign: One of `>`, `>=`, `<`, `<=`.
        number: The number that the value is compared with, exactly as written.
        dataset: Name of a data set; "" = every set that has the metric. For a mean, OOD sets without classes
            contribute their plain value.
        ood_class: Name of a class or unit test; "*" = all classes of a set; "" = the set, or all its classes if only
            classes have the metric.

    Example:
        >>> print(Limit.of("msp: fpr95 on near/seven > 0.25"))
        msp: fpr95 on near/seven > 25%
    """

    detector: str
    metric: str
    sign: str
    number: float
    dataset: str = ""
    ood_class: str = ""

    def __post_init__(self) -> None:
        """Check the number: a share must be in [0, 1].

        Raises:
            InvalidArgumentError: The metric is a share, and the number is not in [0, 1].
        """
        entry = entry_of(self.metric)
        if entry is not None and not entry.is_count and not 0 <= self.number <= 1:
            percent = f"; did you mean {self.number:.12g}%?" if 1 < self.number <= 100 else ""
            raise InvalidArgumentError(
                f"limit on {self.metric} of {self.detector}: {self.metric} is a share; expected a number from 0 to"
                f" 1, or from 0% to 100%, got {self.number:.12g}{percent}"
            )

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Read `DETECTOR: METRIC [on DATASET[/CLASS]] SIGN NUMBER`; a number may be in percent.

        Raises:
            InvalidArgumentError: The text has another form.
        """
        found = _FORM.fullmatch(text.strip())
        number = found and exact_number(found["number"].removesuffix("%"))
        if found is None or number is None:
            raise InvalidArgumentError(
                f"invalid limit {text!r}: expected 'DETECTOR: METRIC [on DATASET[/CLASS]] > NUMBER' with >, >=, < or"
                " <=, such as 'mahalanobis: unit_test_failures > 0' or 'msp: mean_fpr95 on ninco > 0.7'"
            )
        is_percent, entry = found["number"].endswith("%"), entry_of(found["metric"])
        value = float(number / 100 if is_percent else number)
        if is_percent and entry is not None and (entry.is_count or not 0 <= value <= 1):
            kind = "a count; expected a number without %" if entry.is_count else "a share; expected 0% to 100%"
            raise InvalidArgumentError(f"limit {text!r}: {found['metric']} is {kind}, got {found['number']}")
        dataset, _, ood_class = (found["place"] or "").partition("/")
        return cls(found["detector"].strip(), found["metric"], found["sign"], value, dataset.strip(), ood_class.strip())

    def check_names(
        self, detectors: Mapping[str, str] | Iterable[str], datasets: Collection[str], settings: Settings
    ) -> "Limit":
        """Check the names of a limit before a run starts.

        `detectors` are names, or a mapping of names to display names; `datasets` include means over data sets.

        Returns:
            The limit with the name of the detector instead of its display name.

        Raises:
            UnknownNameError: The detector, metric or data set is unknown.
        """
        shown = detectors if isinstance(detectors, Mapping) else {name: name for name in detectors}
        try:
            detector = resolve("detector", self.detector, {MODEL: MODEL, ANY: ANY, **shown})
        except UnknownNameError as error:
            raise UnknownNameError(f"limit '{self}': {error}") from None
        plain = {metric.name for metric in table_metrics(settings)}
        if self.metric.removeprefix(MEAN).removeprefix(POOLED) not in plain:
            known = {prefix + name for prefix in ("", MEAN, POOLED) for name in plain}
            raise self._unknown("metric", self.metric, known)
        if self.dataset and self.dataset not in datasets:
            raise self._unknown("data set", self.dataset, datasets)
        return replace(self, detector=detector)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        return UnknownNameError(f"limit '{self}': {UnknownNameError.of(kind, name, known)}")

    def __str__(self) -> str:
        """The text that `of` reads."""
        place = "/".join(filter(None, (self.dataset, self.ood_class)))
        return f"{self.detector}: {self.metric}{f' on {place}' if place else ''} {self.sign} {self.shown_number}"

    @property
    def shown_number(self) -> str:
        """The number as `of` reads it: a share in percent."""
        return f"{100 * self.number:.12g}%" if _is_share(self.metric) else f"{self.number:.12g}"


@dataclass(frozen=True)
class Crossing:
    """A value that crosses a limit.

    Args:
        limit: The limit.
        row: The row of the table.
        classes: Names of the classes or unit tests that were counted, for a value that is a count.
        keys: Images behind the value: accepted or misclassified ones.
    """

    limit: Limit
    row: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Value, interval, limit and images."""
        row = self.row
        place = "/".join(filter(None, (row["dataset"], row["ood_class"])))
        low, high, value = (_text(row["metric"], row[name]) for name in ("ci_low", "ci_high", "value"))
        ends = f" [{low.removesuffix(' %')}, {high.removesuffix(' %')}]" if math.isfinite(row["ci_low"]) else ""
        text = f"{row['detector']}: {row['metric']} on {place} is {value}{ends}"
        text += f" (fails if {self.limit.sign} {self.limit.shown_number})"
        if self.classes:
            text += f"; failed: {', '.join(self.classes)}"
        if self.keys:
            kind = "misclassified" if row["metric"].endswith("accuracy") else "accepted"
            text += f"; {kind} images: {some([*map(readable, self.keys)], MAX_KEYS)}"
        return text


def _is_share(metric: str) -> bool:
    """Whether values of a metric are shares, which are shown in percent."""
    return (entry := entry_of(metric)) is not None and not entry.is_count


def _text(metric: str, value: float) -> str:
    return f"{100 * value:.4g} %" if _is_share(metric) else f"{value:.4g}"


def priors_of(limits: Iterable[Limit]) -> tuple[float, ...]:
    """The assumed fractions of OOD images in the names of metrics, such as 0.01 for risk1.

    Example:
        >>> priors_of(map(Limit.of, ["msp: joint_risk1 > 5%", "msp: mean_joint_augrc0.5 > 0.1", "msp: auroc < 1"]))
        (0.01, 0.005)
    """
    names = dict.fromkeys(limit.metric for limit in limits)
    numbered = [n for n in names if (entry := entry_of(n)) is not None and entry.numbered_by == "prior"]
    return tuple(dict.fromkeys(float(re.findall(r"[\d.]+$", name)[0]) / 100 for name in numbered))


def crossings(results: RunResults, limits: Iterable[Limit | str]) -> list[Crossing]:
    """Find the values of a run that cross limits.

    Args:
        results: The run.
        limits: Conditions that no value may meet, as `Limit` or as text; see `Limit.of`.

    Raises:
        UnknownNameError: A limit names something that the run does not have.
        InvalidArgumentError: A value is undefined, so that it cannot pass; or a text is not a valid limit.

    Example:
        >>> from oodlit.results import DatasetInfo, Results
        >>> from oodlit.roles import Role
        >>> frame = pd.DataFrame({"key": ["val/0", "val/1", "near/0"], "dataset": ["val", "val", "near"],
        ...     "group": [-1, -1, 0], "label": [0, 0, -1], "prediction": [0, 1, 1], "msp": [0.9, 0.5, 0.7]})
        >>> datasets = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("seven",))]
        >>> results = Results.from_scores(frame, datasets, ["msp"], bootstrap=0)
        >>> print(*crossings(results, ["msp: fpr95 on near/seven > 10%", "msp: mean_auroc < 0.5"]))
        msp: fpr95 on near/seven is 100 % [20.65, 100] (fails if > 10%); accepted images: near/0
    """
    found = []
    for given in limits:
        limit = Limit.of(given) if isinstance(given, str) else given
        rows = checked_rows(results, limit)
        crossed = [row for row in rows if _COMPARE[limit.sign](exact_value(results, row), as_exact(limit.number))]
        found += [Crossing(limit, row, *_cause(results, row)) for row in crossed]
    return found


def checked_rows(results: RunResults, limit: Limit) -> list[dict[str, Any]]:
    """The rows of the table that a limit applies to, at least one; see `crossings` for the errors."""
    rows = _rows(results, limit)
    if undefined := [row for row in rows if math.isnan(row["value"])]:
        raise InvalidArgumentError(_undefined(results, limit, undefined[0]))
    return rows


def describe_check(results: RunResults, limit: Limit) -> str:
    """One line about the values that a limit applies to, the most critical first.

    Example:
        >>> from oodlit.results import DatasetInfo, Results
        >>> from oodlit.roles import Role
        >>> frame = pd.DataFrame({"key": ["val/0", "far/0", "far/1"], "dataset": ["val", "far", "far"], "group": -1,
        ...     "label": -1, "prediction": -1, "msp": [0.9, 0.5, 0.9]})
        >>> datasets = [DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD)]
        >>> results = Results.from_scores(frame, datasets, ["msp"], bootstrap=0)
        >>> describe_check(results, Limit.of("msp: mean_fpr95 > 0.7"))
        'msp: mean_fpr95 > 70% was compared with 1 value: far 50 % (fpr95)'
    """
    rows = sorted(checked_rows(results, limit), key=lambda row: row["value"], reverse=limit.sign.startswith(">"))
    texts = []
    for row in rows:
        place = "/".join(filter(None, (row["dataset"], row["ood_class"])))
        text = _text(row["metric"], row["value"])
        own = f" ({row['metric']})" if row["metric"] != limit.metric else ""
        texts.append(f"{row['detector'] + ': ' if limit.detector == ANY else ''}{place} {text}{own}")
    return readable(f"{limit} was compared with {len(rows)} values: {some(texts, MAX_VALUES)}")


def read_limits(file: str | os.PathLike[str]) -> list[Limit]:
    """Read limits from a YAML file, a list under `fail_if`.

    Raises:
        InvalidArgumentError: The file is not readable or has another content.
    """
    try:
        content = load_yaml(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the limits file {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidArgumentError(f"the limits file {file} is not valid YAML: {reason}") from error
    entries = content.get("fail_if") if isinstance(content, dict) and set(content) == {"fail_if"} else None
    if not isinstance(entries, list) or not entries:
        raise InvalidArgumentError(
            f"the limits file {file} must contain one list named fail_if with entries such as 'msp: mean_fpr95 > 0.7'"
        )
    # Without quotes, YAML reads the colon as that of a mapping.
    texts = [
        ": ".join(map(str, *entry.items())) if isinstance(entry, dict) and len(entry) == 1 else entry
        for entry in entries
    ]
    return [Limit.of(str(text)) for text in texts]


def _rows(results: RunResults, limit: Limit) -> list[dict[str, Any]]:
    """Rows of the table that a limit applies to; at least one."""
    reasons, shown = results.run.not_applicable, display_names(results.run)
    if limit.detector in reasons and limit.detector not in shown:
        raise UnknownNameError(
            f"limit '{limit}': the results have no detector {limit.detector!r}, because it {reasons[limit.detector]}"
        )
    datasets = [info.name for info in results.datasets]
    limit = limit.check_names(shown, [*datasets, *results.settings.aggregates], results.settings)
    if limit.detector == ANY and (missing := _missing(results)):
        raise UnknownNameError(
            f"limit '{limit}': '*' means every requested detector, but {missing[0]}. Write one limit per detector"
            " instead of '*', or run without the missing detector"
        )
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
        own = whole[whole["detector"] == limit.detector]
        whole = whole if own.empty else own
        there = sorted({f"{row.detector}: {row.metric} on {row.dataset}" for row in whole.itertuples()})
        raise UnknownNameError(
            f"limit '{limit}': the run has no such value; available values of {limit.metric}:"
            f" {', '.join(there[:8]) or 'none'}"
        )
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _missing(results: RunResults) -> list[str]:
    """Why requested detectors have no scores: they failed, or were not applicable."""
    missing = [found.text for found in results.findings if found.kind == "failed"]
    if not results.run.every_detector:
        reasons = {n: why for n, why in results.run.not_applicable.items() if n not in results.detectors}
        missing += [f"detector {name!r} is not among the results, because it {why}" for name, why in reasons.items()]
    return missing


def _is_meant(results: RunResults, limit: Limit) -> "pd.Series[bool]":
    """Which rows have the metric of a limit.

    If the limit of a mean names no set, an OOD set without classes is checked by its plain value: summaries show that
    value beside the means of other sets, and without it the set would pass unchecked.
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
        f" ({reasons[0] if reasons else 'no reason is recorded'}), and an undefined value never passes"
    )


def _cause(results: RunResults, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Classes and images behind a value; none for metrics that depend on the whole ranking."""
    entry = entry_of(row["metric"])
    if entry is None or row["dataset"] in results.settings.aggregates:
        return (), ()
    info = results.dataset(row["dataset"])
    rows = results.scores[results.scores["dataset"] == info.name]
    if info.role is Role.POOL or row["ood_class"]:
        names = _of_level(results, row) if info.role is Role.POOL else {row["ood_class"]}
        rows = rows[rows["group"].isin([group for group, name in enumerate(info.class_names) if name in names])]
    classes: Sequence[str] = ()
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
    """Classes of a pool in the level of a row, or in any level for a row of all levels."""
    found = severities(results, row["dataset"], row["detector"])
    wanted = row["ood_class"]
    is_in = [wanted in names.split() if wanted else bool(names) for names in found["levels"]]
    return {str(name) for name in found["ood_class"][is_in]}


def failed_tests(results: RunResults, detector: str, dataset: str) -> list[str]:
    """Names of the unit tests of a set that a detector fails."""
    table, settings = results.table, results.settings
    rows = table[(table["detector"] == detector) & (table["dataset"] == dataset) & (table["ood_class"] != "")]
    rows = rows[(rows["metric"] == settings.fpr_name) & (rows["value"] > settings.unit_test_limit)]
    return [str(name) for name in rows["ood_class"]]


def _keys(rows: pd.DataFrame) -> tuple[str, ...]:
    return tuple(sorted(rows["key"]))
