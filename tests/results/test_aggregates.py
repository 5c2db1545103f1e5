"""Means over data sets against plain loops: both threshold directions, AUPR, classes, shifted images, missing sets."""

import io
import math
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.report.summary import summary_table
from oodlit.results import DatasetInfo, Results
from oodlit.results.limits import Limit, describe_check
from oodlit.roles import Role

SIZES = {"val": 211, "near_a": 60, "near_b": 45, "far_a": 80, "v2": 70, "r": 90}
SETS = [
    DatasetInfo("val", Role.ID),
    DatasetInfo("near_a", Role.OOD, ("cat", "dog", "owl")),
    DatasetInfo("near_b", Role.OOD),
    DatasetInfo("far_a", Role.OOD),
    DatasetInfo("v2", Role.SHIFT),
    DatasetInfo("r", Role.SHIFT),
]
AGGREGATES = {"near": ["near_a", "near_b"], "far": ["far_a"]}
METRICS = ("auroc", "fpr95", "fpr_e95", "aupr_s", "aupr_e")


def scores(seed: int, *, ties: bool) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for info in SETS:
        n = SIZES[info.name]
        values = rng.normal({Role.ID: 1.0, Role.SHIFT: 0.6}.get(info.role, 0.0), 1.0, n)
        known = info.role is not Role.OOD
        frame = pd.DataFrame({"key": [f"{info.name}/{i}" for i in range(n)], "dataset": info.name})
        frame["group"] = rng.integers(0, 3, n) if info.class_names else -1
        frame["label"] = rng.integers(0, 4, n) if known else -1
        frame["prediction"] = rng.integers(0, 4, n)
        frames.append(frame.assign(msp=np.round(values, 1) if ties else values))
    return pd.concat(frames, ignore_index=True)


def plain(metric: str, inside: list[float], outside: list[float]) -> float:
    """The value by its definition, in plain loops."""
    if metric == "auroc":
        return sum((i > o) + (i == o) / 2 for i, o in product(inside, outside)) / len(inside) / len(outside)
    if metric.startswith("fpr"):
        if metric == "fpr_e95":  # OOD is positive: a low score is a find
            inside, outside = [-o for o in outside], [-i for i in inside]
        kept = [t for t in inside if 100 * sum(i >= t for i in inside) >= 95 * len(inside)]
        return sum(o >= max(kept) for o in outside) / len(outside)
    if metric == "aupr_e":
        inside, outside = [-o for o in outside], [-i for i in inside]
    area, before = 0.0, 0
    for t in sorted({*inside, *outside}, reverse=True):
        found, wrong = sum(i >= t for i in inside), sum(o >= t for o in outside)
        area += (found - before) / len(inside) * found / max(found + wrong, 1)
        before = found
    return area


@pytest.mark.parametrize("ties", [False, True])
def test_means_over_sets_are_those_of_plain_loops(ties: bool) -> None:
    frame = scores(int(ties), ties=ties)
    results = Results.from_scores(frame, SETS, ["msp"], aggregates=AGGREGATES, bootstrap=10)
    of = {info.name: frame.loc[frame["dataset"] == info.name, "msp"].tolist() for info in SETS}
    spectrum = [*of["val"], *of["v2"], *of["r"]]
    for name, members in AGGREGATES.items():
        for metric, (prefix, inside) in product(METRICS, (("", of["val"]), ("fs_", spectrum))):
            expected = sum(plain(metric, inside, of[member]) for member in members) / len(members)
            row = results.row(prefix + metric, dataset=name, detector="msp")
            assert abs(row["value"] - expected) < 1e-12, (name, prefix, metric)
            assert (row["n_id"], row["n_ood"]) == (len(inside), sum(SIZES[member] for member in members))
            if metric.startswith("aupr"):
                assert math.isnan(row["ci_low"])
            else:
                assert 0 <= row["ci_low"] < row["value"] < row["ci_high"] <= 1
    known = frame[frame["dataset"].isin(["val", "v2", "r"])]
    right = (known["label"] == known["prediction"]).mean()
    assert results.value("fs_accuracy", dataset="val") == pytest.approx(right, abs=1e-12)


def test_a_missing_set_is_a_reason_and_no_number(tmp_path: Path) -> None:
    frame, sets = (
        scores(2, ties=False),
        [info for info in SETS if info.name != "near_b" and info.role is not Role.SHIFT],
    )
    frame = frame[frame["dataset"].isin([info.name for info in sets])]
    with pytest.warns(UndefinedMetricWarning, match="this run is missing these data sets: near_b"):
        results = Results.from_scores(frame, sets, ["msp"], aggregates=AGGREGATES, bootstrap=0)
    assert math.isnan(results.value("auroc", dataset="near", detector="msp"))
    assert results.value("auroc", dataset="far", detector="msp") > 0.5
    reasons = {one.reason for one in results.run.undefined if one.dataset == "near"}
    assert reasons == {"this run is missing these data sets: near_b"}
    assert "fs_auroc" not in set(results.table["metric"])
    results.save(tmp_path)
    again = Results.load(tmp_path)
    assert again.settings.aggregates == AGGREGATES
    pd.testing.assert_frame_equal(again.table, results.table)


def test_a_missing_shifted_set_is_a_reason_and_no_number(tmp_path: Path) -> None:
    sets = [info for info in SETS if info.name != "r"]
    frame = scores(4, ties=False)
    frame = frame[frame["dataset"] != "r"]
    whole = Results.from_scores(frame, sets, ["msp"], aggregates=AGGREGATES, bootstrap=10, full_spectrum=["v2"])
    other = whole.recompute(full_spectrum=())
    pd.testing.assert_frame_equal(whole.table, other.table)
    with pytest.warns(UndefinedMetricWarning, match="this run is missing these shifted data sets: r"):
        lost = whole.recompute(full_spectrum=["v2", "r"])
    is_fs = lost.table["metric"].str.contains("fs_")
    assert {"fs_accuracy", "fs_auroc", "mean_fs_fpr95", "pooled_fs_aupr_s"} <= set(lost.table[is_fs]["metric"])
    assert lost.table[is_fs][["value", "ci_low", "ci_high"]].isna().all(axis=None)
    pd.testing.assert_frame_equal(lost.table[~is_fs], whole.table[~is_fs])
    assert [one.reason for one in lost.run.undefined] == [
        "this run is missing these shifted data sets: r"
    ] * is_fs.sum()
    lost.save(tmp_path)
    assert Results.load(tmp_path).settings == lost.settings


def test_means_of_a_finished_run_limits_and_errors() -> None:
    results = Results.from_scores(scores(3, ties=False), SETS, ["msp"], bootstrap=0)
    near = results.recompute(aggregates={"near": ("near_a", "near_b")})
    assert set(near.table["dataset"]) - set(results.table["dataset"]) == {"near"}
    assert math.isnan(near.row("auroc", dataset="near", detector="msp")["ci_low"])
    assert "near" in describe_check(near, Limit.of("msp: auroc on near < 0.1"))
    assert near.pooled(["near_b", "far_a"]).settings.aggregates == {}
    for wrong, match in (
        ({"val": ["near_a"]}, "is not the name of a data set"),
        ({"near": ["near_a", "near_a"]}, "expected 'near' to be a mean over distinct data sets"),
        ({"near": []}, "expected 'near' to be a mean over distinct data sets"),
        ({"near": ["v2"]}, "role shift"),
        ({"near": "near_a"}, "list of data sets"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            results.recompute(aggregates=wrong)


def test_the_terminal_and_exported_tables_have_the_means() -> None:
    """Means of a benchmark come first in the terminal; in tables of papers, they replace the average of all sets."""
    aggregates = AGGREGATES | {"lost": ["near_a", "gone"]}
    frame = scores(0, ties=False).assign(energy=lambda rows: rows["msp"] ** 3)
    with pytest.warns(UndefinedMetricWarning):
        results = Results.from_scores(frame, SETS, ["msp", "energy"], bootstrap=0, aggregates=aggregates)
    console = Console(file=io.StringIO(), width=250)
    console.print(summary_table(results))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.split()[:3] == ["near", "near", "far"]
    assert text.count("mean of 2 sets") == 4
    assert text.count("mean of 1 set ") == 2
    assert "undefined on lost: this run is missing these data sets: gone" in text
    exported = results.to_markdown()
    assert "average" not in exported
    header, _, *rows = exported.splitlines()
    heads = [cell.strip() for cell in header.strip("|").split("|")]
    for name, metric, shown in product(("near", "far"), ("fpr95", "auroc"), ("msp", "energy")):
        value = f"{100 * results.value(metric, dataset=name, detector=shown):.1f}"
        column = next(place for place, head in enumerate(heads) if head.startswith(f"{name}: {metric.upper()}"))
        row = next(row for row in rows if row.startswith(f"| {shown} "))
        assert row.strip("|").split("|")[column].strip(" *") == value
        assert value in text
    assert "near is the mean over near\\_a, near\\_b" in exported or "near is the mean over near_a, near_b" in exported
