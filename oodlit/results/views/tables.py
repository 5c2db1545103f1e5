"""Views of the tidy table: detectors against data sets, classes, or unit tests."""

from collections.abc import Sequence

import pandas as pd

from oodlit.base.errors import UnknownNameError
from oodlit.base.roles import UNKNOWN_CLASSES, Role
from oodlit.results.glossary import headline_metrics
from oodlit.results.names import MODEL
from oodlit.results.run_results import RunResults


def summary(results: RunResults, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """See `Results.summary`."""
    rows = results.table[results.table["ood_class"] == ""]
    chosen: list[tuple[str, str]] = []
    for info in results.datasets:
        present = set(rows.loc[rows["dataset"] == info.name, "metric"])
        own = results.settings.der_names[:1] if info.role is Role.SHIFT else headline_metrics(info, results.settings)
        chosen += [(info.name, metric) for metric in (own if metrics is None else metrics) if metric in present]
    for metric in metrics or ():
        if metric not in {name for _, name in chosen}:
            raise UnknownNameError.of("metric of a data set", metric, map(str, rows["metric"].unique()))
    columns = pd.MultiIndex.from_tuples(chosen, names=["dataset", "metric"])
    wide = rows[rows["detector"] != MODEL].pivot(index="detector", columns=["dataset", "metric"], values="value")
    shown = wide.reindex(index=pd.Index(results.detectors, name="detector"), columns=columns)
    shown.attrs["note"] = _note(results, list(dict.fromkeys(name for name, _ in chosen)))
    return shown


def _note(results: RunResults, datasets: Sequence[str]) -> str:
    """Number of images and threshold rule, which every table must show."""
    inside = results.id_dataset.name
    counts, settings = results.run.counts, results.settings
    others = ", ".join(f"{name} n = {counts.get(name, 0)}" for name in datasets if name != inside)
    kept = f"Thresholds accept {100 * settings.tpr:.4g} % of {inside} (n = {counts.get(inside, 0)}; threshold rule:"
    return f"{kept} {settings.rule!r}){'; ' if others else ''}{others}."


def per_class(results: RunResults, dataset: str, metric: str | None = None) -> pd.DataFrame:
    """See `Results.per_class`."""
    info = results.dataset(dataset)
    metric = metric or (results.settings.accepted_name if info.role is Role.SHIFT else results.settings.fpr_name)
    rows = results.table[(results.table["dataset"] == dataset) & (results.table["ood_class"] != "")]
    UnknownNameError.check(f"per-class metric of {dataset!r}", metric, [*map(str, rows["metric"].unique())])
    rows = rows[rows["metric"] == metric]
    wide = rows.pivot(index="ood_class", columns="detector", values="value")
    names = rows["ood_class"].unique().tolist() if info.role is Role.POOL else info.class_names  # levels of a pool
    order = [name for name in names if name in wide.index]
    counts = rows.drop_duplicates("ood_class").set_index("ood_class")
    n = counts["n_ood"] if info.role in UNKNOWN_CLASSES else counts["n_id"]
    columns = [name for name in (MODEL, *results.detectors) if name in wide.columns]
    wide = wide.reindex(index=pd.Index(order, name="ood_class"), columns=columns).rename_axis(columns=None)
    if info.role is not Role.POOL:  # whose levels have other classes for every detector
        wide.insert(0, "n", n.reindex(order).astype("int64"))
    return wide


def unit_tests(results: RunResults) -> pd.DataFrame:
    """See `Results.unit_tests`."""
    names = [info.name for info in results.datasets if info.role is Role.UNIT_TEST]
    rows = results.table[results.table["dataset"].isin(names) & (results.table["metric"] == results.settings.fpr_name)]
    wide = rows.pivot(index=["dataset", "ood_class"], columns="detector", values="value")
    order = list(dict.fromkeys(zip(rows["dataset"], rows["ood_class"], strict=True)))
    if not order:  # no unit tests: a table of the same form
        index = pd.MultiIndex.from_arrays([[], []], names=["dataset", "test"])
        return pd.DataFrame(index=index, columns=list(results.detectors), dtype="float64")
    index = pd.MultiIndex.from_tuples(order, names=["dataset", "test"])
    return wide.reindex(index=index, columns=list(results.detectors)).rename_axis(columns=None)
