"""A metric costs one file and one line of export: the table, its means, exports, `oodlit list` and the page know it."""

import importlib
import math

import numpy as np
import pandas as pd
import pytest

from oodlit import metrics
from oodlit.cli.listing import listing
from oodlit.report.sections.images.words import terms
from oodlit.results import Results
from oodlit.results.glossary import entry_of, glossary
from tests.results.support import DATASETS, DETECTORS, run_scores

FILE = '''
"""How far apart the mean scores lie."""

import math

from oodlit.metrics.entry import MetricEntry, Value
from oodlit.roles import Role


def gap(id_scores, ood_scores):
    """Mean ID score minus mean OOD score."""
    return float(id_scores.double().mean() - ood_scores.double().mean())


def compute(images):
    if reason := images.ranking.missing():
        return Value(math.nan, reason=reason)
    value = gap(images.id_scores.values, images.scores)
    return Value(value, (value - 1, value + 1))


ENTRIES = (
    MetricEntry("gap", "lower", (Role.OOD,), "mean ID score minus mean OOD score", gap, compute),
    MetricEntry("drift", "", (Role.SHIFT,), "mean ID score minus mean shifted score", gap, compute, order=0),
    MetricEntry("widest", "higher", (Role.OOD,), "largest gap of a class", gap,
          lambda images: Value(max(compute(group).value for group in images.groups.values())), of_set=True),
)
'''


@pytest.fixture
def with_gap(tmp_path, monkeypatch):
    (tmp_path / "file_of_gap.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(metrics, "gap", importlib.import_module("file_of_gap").gap, raising=False)
    monkeypatch.setattr(metrics, "__all__", [*metrics.__all__, "gap"])


@pytest.fixture
def results(with_gap):
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=20)


def test_the_table_has_it(results):
    mean = results.scores.astype({"good": float}).groupby("dataset", sort=False)["good"].mean()
    for metric, dataset in (("gap", "far"), ("pooled_gap", "near"), ("drift", "shifted")):
        value = results.value(metric, dataset=dataset, detector="good")
        assert value == pytest.approx(mean["val"] - mean[dataset]), metric
    assert not math.isnan(results.value("drift", dataset="shifted", detector="good", ood_class="fog"))
    per_class = results.per_class("near", "gap")["good"]
    assert results.value("mean_gap", dataset="near", detector="good") == pytest.approx(per_class.mean())
    assert results.value("widest", dataset="near", detector="good") == per_class.max()
    row = results.table.query("metric == 'gap' and dataset == 'far' and detector == 'good'").iloc[0]
    assert (row["n_id"], row["n_ood"], row["rule"]) == (300, 40, "")
    assert row["ci_high"] - row["ci_low"] == pytest.approx(2)


def test_nothing_else_changes(results, request):
    names = ("gap", "mean_gap", "pooled_gap", "drift", "widest")
    others = results.table[~results.table["metric"].isin(names)].reset_index(drop=True)
    request.getfixturevalue("monkeypatch").undo()
    plain = Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=20)
    pd.testing.assert_frame_equal(plain.table, others, check_exact=True)


def test_it_is_listed_and_explained(results, capsys):
    listing("metrics", verbose=True)
    shown = capsys.readouterr().out
    facts = shown[shown.index("\ngap\n") :].splitlines()[2:6]
    what = "  meaning: mean ID score minus mean OOD score"
    assert sorted(facts) == ["  better: lower", what, "  of data sets: OOD", "  oodlit.metrics: gap"]
    assert "43 metrics" in shown  # 25 of images, two of them here, and 16 of boxes
    names = [metric.name for metric, _ in glossary()]
    assert (names[0], *names[-2:]) == ("drift", "gap", "widest")
    results.run.notes.append("gap of 'far': not computed, nobody knows why")
    assert terms(results)["gap"] == "Mean ID score minus mean OOD score; lower is better."


def test_exports_and_comparisons_know_which_direction_is_better(results):
    lines = results.to_markdown(metrics=["gap", "drift"]).splitlines()
    smaller = results.value("gap", dataset="far", detector="poor")
    assert smaller < results.value("gap", dataset="far", detector="good")
    assert lines[0] == "| detector | far: gap ↓ | shifted: drift |"
    assert f"**{100 * smaller:.1f}**" in lines[3]
    assert sum(line.count("**") for line in lines) == 2  # drift has no best
    row = results.compare("good", metric="gap").iloc[0]
    assert row["losses"] == 3


@pytest.mark.usefixtures("with_gap")
def test_a_reason_stands_where_it_is_undefined():
    frame = run_scores()
    with pytest.warns(metrics.UndefinedMetricWarning):
        none = Results.from_scores(frame[frame["dataset"] != "far"], DATASETS, DETECTORS, bootstrap=0)
    reasons = {(e.dataset, e.metric): e.reason for e in none.run.undefined}
    assert reasons["far", "gap"] == "there is no OOD score"


def test_it_goes_with_its_line():
    assert entry_of("gap") is None


def test_where_neither_direction_is_better_nobody_is(results):
    table = results.table
    table.loc[table["metric"] == "auroc", "metric"] = "accepted95"  # as if OOD classes had it
    table.loc[(table["metric"] == "accepted95") & (table["detector"] == "good"), "value"] += 1
    for test in ("permutation", "sign"):
        row = results.compare("good", metric="accepted95", test=test, confidence=0.01).iloc[0]
        assert row["better"] == ""
        assert np.isclose(row["difference"], row["mean"] - row["mean_other"])
        assert row["wins"] == 3
