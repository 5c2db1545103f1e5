"""Several runs side by side: comparable values, and ranks."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.results.any_results import AnyResults
from oodlit.results.glossary import better_of, headline_metrics
from oodlit.results.info import DatasetInfo
from oodlit.results.names import some
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import check_same_pool


class RunColumn(NamedTuple):
    """One value of every detector, in several runs.

    Args:
        dataset: The data set.
        metric: Name of the metric, as in the first run.
        reason: How the runs differ, so that their values are not comparable; "" = they are.
    """

    dataset: str
    metric: str
    reason: str


class _Set(NamedTuple):
    """Properties of a data set that must agree: role, classes in use, number of images, digest of keys and of labels.

    Labels may have other numbers in the other run, but images of one label have one label there; b"" = no labels.
    """

    role: Role
    classes: tuple[str, ...]
    n: int
    digest: bytes
    labels: bytes = b""


def check_runs(runs: object) -> None:
    """Refuse runs without names.

    Raises:
        InvalidArgumentError: They are not a mapping, or there is none.
    """
    if not isinstance(runs, Mapping):
        kind = type(runs).__name__
        raise InvalidArgumentError(f"expected runs by name, such as {{'resnet50': results}}, got a {kind}")
    if not runs:
        raise InvalidArgumentError("expected at least one run to compare, got none")


def run_columns(runs: Mapping[str, RunResults]) -> list[RunColumn]:
    """The headline values of the runs, and whether they are comparable.

    Values are comparable if all runs have the same ID images, the same images in the same classes of the set and, for
    the FPR and the unit tests, the same TPR and threshold rule.

    Args:
        runs: Results by name, such as that of the model.

    Returns:
        FPR and AUROC of OOD sets (the mean over classes for sets with classes) and of pools, failed unit tests and
        the ID-AUROC, in the order of the first run; values that only others have come last.

    Raises:
        InvalidArgumentError: There is no run.
    """
    check_runs(runs)
    known = {name: {info.name: _set(results, info) for info in results.datasets} for name, results in runs.items()}
    infos = {info.name: info for results in reversed(list(runs.values())) for info in results.datasets}
    order = dict.fromkeys(info.name for results in runs.values() for info in results.datasets)
    settings = next(iter(runs.values())).settings
    columns = []
    for dataset in order:
        for metric in headline_metrics(infos[dataset], settings):
            reason = _other_inside(runs, known) or next(_other_set(known, dataset), "")
            reason = reason or ("" if metric.endswith("auroc") else _other_threshold(runs))
            columns.append(RunColumn(dataset, metric, reason or _other_pool(runs, infos[dataset])))
    return columns


def values_of_runs(runs: Mapping[str, RunResults], dataset: str, metric: str | None = None) -> pd.DataFrame:
    """One value of every detector in every run.

    Args:
        runs: Results by name.
        dataset: A data set of all of them.
        metric: One of the metrics that `run_columns` returns for it; None = the first of them.

    Returns:
        One row per run, one column per detector, in the order of the runs; NaN if a run does not have the detector or
        its value is undefined.

    Raises:
        UnknownNameError: No run has the data set, or it has no such headline metric.
        InvalidArgumentError: The runs are not comparable, or there is none.
    """
    columns = run_columns(runs)
    UnknownNameError.check("common data set", dataset, {column.dataset for column in columns})
    own = {column.metric: column for column in columns if column.dataset == dataset}
    metric = metric or next(iter(own))
    UnknownNameError.check(f"headline metric of {dataset!r}", metric, own)
    if own[metric].reason:
        raise InvalidArgumentError(f"{metric} of {dataset!r} cannot be compared: {own[metric].reason}")
    return values_of_column(runs, own[metric])


def values_of_column(runs: Mapping[str, AnyResults], column: RunColumn) -> pd.DataFrame:
    """`values_of_runs` for a column that is known to be comparable."""
    detectors = list(dict.fromkeys(name for results in runs.values() for name in results.detectors))
    rows = []
    for results in runs.values():
        table = results.table[(results.table["dataset"] == column.dataset) & (results.table["ood_class"] == "")]
        values = table[table["metric"] == column.metric].set_index("detector")["value"]
        rows.append(values.reindex(detectors).tolist())
    index, columns = pd.Index(list(runs), name="run"), pd.Index(detectors, name="detector")
    return pd.DataFrame(rows, index=index, columns=columns, dtype="float64")


def mean_ranks(values: pd.DataFrame, metric: str) -> tuple[pd.Series, pd.Series]:
    """Mean rank of every run over the detectors, and of every detector over the runs; 1 = best, ties share a rank.

    Args:
        values: The result of `values_of_runs`.
        metric: Name of the metric, which determines the better direction.

    Returns:
        Ranks of the runs over the detectors with a value in all runs, and of these detectors over the runs. NaN for
        other detectors, and for all if there is no such detector.

    Raises:
        InvalidArgumentError: The metric has no better direction.

    Example:
        >>> values = pd.DataFrame({"msp": [0.5, 0.4], "knn": [0.3, 0.3]}, index=["small", "large"])
        >>> of_runs, of_detectors = mean_ranks(values, "fpr95")
        >>> of_runs.to_dict(), of_detectors.to_dict()
        ({'small': 1.75, 'large': 1.25}, {'msp': 2.0, 'knn': 1.0})
    """
    better = better_of(metric)
    if not better:
        reason = "the metric is unknown, or neither high nor low is better"
        raise InvalidArgumentError(f"mean_ranks: cannot rank by {metric!r}, since {reason}")
    return mean_ranks_of(values, ascending=better == "lower")


def mean_ranks_of(values: pd.DataFrame, *, ascending: bool) -> tuple[pd.Series, pd.Series]:
    """`mean_ranks` of a metric whose better direction is known; `ascending` if lower values are better."""
    complete = values.dropna(axis="columns")
    of_runs = complete.rank(axis="index", ascending=ascending).mean(axis="columns")
    of_detectors = complete.rank(axis="columns", ascending=ascending).mean(axis="index")
    return of_runs, of_detectors.reindex(values.columns)


def _set(results: RunResults, info: DatasetInfo) -> _Set:
    rows = results.images(info.name)
    grouped = info.role in (Role.OOD, Role.UNIT_TEST, Role.SHIFT)
    classes = tuple(sorted(results.settings.classes.get(info.name, info.class_names))) if grouped else ()
    digest = hashlib.blake2b("\n".join(rows["key"]).encode("utf-8", "surrogatepass"))
    if grouped:
        digest.update(rows["group"].to_numpy(dtype="int64").tobytes())
    labels = rows["label"].to_numpy(dtype="int64")
    codes = pd.factorize(labels)[0].astype("int64").tobytes()
    of_labels = hashlib.blake2b(codes).digest() if (labels >= 0).any() else b""
    return _Set(info.role, classes, len(rows), digest.digest(), of_labels)


def _other_inside(runs: Mapping[str, RunResults], known: Mapping[str, Mapping[str, _Set]]) -> str:
    inside = {name: results.id_dataset.name for name, results in runs.items()}
    first = next(iter(runs))
    for name in runs:
        if inside[name] != inside[first]:
            return f"the ID set is {inside[first]} in {first} and {inside[name]} in {name}"
    return next(_other_set(known, inside[first]), "")


def _other_set(known: Mapping[str, Mapping[str, _Set]], dataset: str) -> Iterator[str]:
    """How a data set differs between the runs."""
    if without := [name for name, sets in known.items() if dataset not in sets]:
        yield f"{some(without, 3)} {'has' if len(without) == 1 else 'have'} no data set {dataset}"
        return
    first = next(iter(known))
    for name, sets in known.items():
        one, other = known[first][dataset], sets[dataset]
        if one.role is not other.role:
            yield f"{dataset} has the role {one.role} in {first} and {other.role} in {name}"
        if odd := set(one.classes) ^ set(other.classes):
            yield f"the classes of {dataset} differ between {first} and {name}: only one of them has {min(odd)!r}"
        if one.n != other.n:
            yield f"{dataset} has {one.n} images in {first} and {other.n} in {name}"
        if (one.classes, one.digest) != (other.classes, other.digest):
            yield f"the images of {dataset} differ between {first} and {name}"
        if one.labels and other.labels and one.labels != other.labels:
            fix = "check that both runs read them in the same order"
            yield f"images of {dataset} with the same key have different labels in {first} and {name}; {fix}"


def _other_threshold(runs: Mapping[str, RunResults]) -> str:
    first = next(iter(runs))
    for name, results in runs.items():
        one, other = runs[first].settings, results.settings
        if one.tpr != other.tpr:
            return f"thresholds accept {100 * one.tpr:g} % of ID images in {first} and {100 * other.tpr:g} % in {name}"
        if (one.rule, one.unit_test_limit) != (other.rule, other.unit_test_limit):
            return f"the threshold rule or the limit of unit tests differs between {first} and {name}"
    return ""


def _other_pool(runs: Mapping[str, RunResults], info: DatasetInfo) -> str:
    if info.role is Role.POOL:
        try:
            check_same_pool(runs, info.name)
        except InvalidArgumentError as error:
            return str(error)
    return ""
