"""Saving, loading, recomputing, summaries, exports, names for loggers."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import oodlit
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import DatasetInfo, Results
from oodlit.results.views.pooling import SharedImagesWarning
from oodlit.roles import Role
from tests.results.support import DATASETS, DETECTORS, run_scores


@pytest.fixture(scope="module")
def results():
    run = {"versions": {"oodlit": "0"}, "argv": ("a", "b"), "timings": {"fit_s": np.float64(1.5)}}
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, run=run, bootstrap=50)


def test_save_and_load_give_the_same(results, tmp_path):
    results.save(tmp_path / "deep" / "run")
    assert sorted(p.name for p in (tmp_path / "deep" / "run").iterdir()) == ["run.json", "scores.parquet", "table.csv"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["run"]
    again = Results.load(tmp_path / "deep" / "run")
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)
    pd.testing.assert_frame_equal(again.scores, results.scores, check_exact=True)
    assert again.run == results.run
    assert again.datasets == results.datasets == tuple(DATASETS)
    assert again.settings == results.settings


def test_undefined_and_infinite_values_survive_saving(tmp_path):
    frame = run_scores()
    frame.loc[frame["dataset"] == "val", "good"] = -np.inf
    with pytest.warns(UndefinedMetricWarning):
        results = Results.from_scores(frame[frame["dataset"] != "far"], DATASETS, DETECTORS, bootstrap=0)
    results.save(tmp_path / "run")
    json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=pytest.fail)
    again = Results.load(tmp_path / "run")
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)
    assert math.isnan(again.value("fpr95", dataset="far", detector="good"))
    assert again.run.thresholds["good"] == results.run.thresholds["good"]
    assert again.run.thresholds["good"]["fpr95"] == -np.inf
    again.plot("score_histograms", dataset="near")
    again.plot("roc", dataset="near")


def test_saving_into_a_directory_with_other_files_keeps_them(results, tmp_path):
    (tmp_path / "report.html").write_text("page")
    results.save(tmp_path)
    results.recompute(tpr=0.9).save(tmp_path)
    assert (tmp_path / "report.html").read_text() == "page"
    assert Results.load(tmp_path).settings.tpr == 0.9
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_an_interrupted_save_leaves_the_old_result_or_an_error(results, tmp_path, monkeypatch):
    results.save(tmp_path / "run")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", fail)
    with pytest.raises(OSError, match="disk full"):
        results.recompute(tpr=0.9).save(tmp_path / "run")
    with pytest.raises(OSError, match="disk full"):
        results.save(tmp_path / "new")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert Results.load(tmp_path / "run").settings.tpr == 0.95
    (tmp_path / "run" / "table.csv").write_text("detector\n")  # as if the process had died between two files
    with pytest.raises(DataError, match=r"table\.csv does not match its checksum in run\.json"):
        Results.load(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(DataError, match=r"incomplete results; missing run\.json"):
        Results.load(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        Results.load(tmp_path / "run")


def test_recompute(results, tmp_path):
    results.save(tmp_path / "run")
    again = Results.load(tmp_path / "run").recompute(tpr=0.9, rule="interpolated", bootstrap=0)
    fresh = Results.from_scores(run_scores(), DATASETS, DETECTORS, tpr=0.9, rule="interpolated", bootstrap=0)
    pd.testing.assert_frame_equal(again.table, fresh.table, check_exact=True)
    assert again.run.argv == ["a", "b"]
    assert "mean_fpr90" in set(again.table["metric"])
    assert set(again.table.loc[again.table["metric"] == "mean_fpr90", "rule"]) == {"interpolated"}
    same = results.recompute()
    pd.testing.assert_frame_equal(same.table, results.table, check_exact=True)
    with pytest.raises(InvalidArgumentError, match=r"recompute has no setting tprs; settings: "):
        results.recompute(tprs=0.9)


def test_recompute_on_some_classes(results):
    some = results.recompute(classes={"near": ["sky", "high heels"]})
    assert list(some.per_class("near").index) == ["high heels", "sky"]
    everything = results.per_class("near")
    for detector in DETECTORS:
        expected = everything.loc[["high heels", "sky"], detector].mean()
        assert some.value("mean_fpr95", dataset="near", detector=detector) == pytest.approx(expected, abs=1e-12)
        row = some.table.query("metric == 'pooled_fpr95' and detector == @detector").iloc[0]
        assert row["n_ood"] == 60


def test_summary_and_exports(results, tmp_path):
    summary = results.summary()
    assert list(summary.columns) == [
        ("val", "id_auroc"),
        ("near", "mean_fpr95"),
        ("near", "mean_auroc"),
        ("far", "fpr95"),
        ("far", "auroc"),
        ("shifted", "der95"),
        ("tests", "unit_test_failures"),
    ]
    assert list(summary.index) == DETECTORS
    assert summary.loc["good", ("far", "auroc")] == results.value("auroc", dataset="far", detector="good")
    for written, name in ((results.to_markdown, "t.md"), (results.to_latex, "t.tex")):
        assert written(tmp_path / name, metrics=["fpr95"]) == (tmp_path / name).read_text(encoding="utf-8")
    records = json.loads(results.to_json(tmp_path / "t.json"))
    assert len(records) == len(results.table)
    assert records[0].keys() == set(results.table.columns)
    results.to_csv(tmp_path / "t.csv")
    results.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), results.table)
    assert len((tmp_path / "t.csv").read_text().splitlines()) == len(results.table) + 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_names_for_loggers(results):
    names = results.metrics_by_name()
    assert len(names) == len(results.table)
    assert names["near/good/mean_fpr95"] == results.value("mean_fpr95", dataset="near", detector="good")
    assert names["near/good/fpr95/high_heels"] == results.per_class("near").loc["high heels", "good"]
    assert "near/good/fpr95/cup_cakes" in names
    assert "val/model/accuracy" in names
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/") for name in names)


def test_names_that_become_equal_stay_apart():
    frame = run_scores()
    datasets = [*DATASETS[:2], DatasetInfo("near", Role.OOD, ("a b", "a:b", "a_b_2")), *DATASETS[3:]]
    results = Results.from_scores(frame, datasets, DETECTORS, bootstrap=0)
    names = results.metrics_by_name()
    assert len(names) == len(results.table)
    values = results.per_class("near")["good"]
    assert names["near/good/fpr95/a_b"] == values["a b"]
    assert {n for n in names if n.startswith("near/good/fpr95/")} == {
        "near/good/fpr95/a_b",
        "near/good/fpr95/a_b_2",
        "near/good/fpr95/a_b_2_2",
    }


def test_unknown_names(results):
    with pytest.raises(UnknownNameError, match=r"value 'near/good/mean_fpr96'; did you mean 'near/good/mean_fpr95'"):
        results.value("mean_fpr96", dataset="near", detector="good")
    with pytest.raises(UnknownNameError, match="unknown data set 'nearr'"):
        results.per_class("nearr")
    with pytest.raises(UnknownNameError, match="unknown per-class metric 'fpr' of 'near'"):
        results.per_class("near", "fpr")
    with pytest.raises(UnknownNameError, match="unknown figure 'bars'"):
        results.plot("bars")


def test_images_that_two_sets_share_are_counted_once():
    """Two sets of three images that share one file: five images, with a warning."""
    frame = run_scores()
    base = frame[frame["dataset"] == "val"]
    rows = pd.DataFrame({"key": ["a/x.jpg", "a/1.jpg", "a/2.jpg", "b/x.jpg", "b/1.jpg", "b/3.jpg"]})
    rows["dataset"] = rows["key"].str[0]
    rows[["group", "label", "prediction"]] = -1
    rows["good"] = rows["poor"] = np.array([0.5, 0.1, 0.2, 0.5, 0.9, 0.3], dtype=np.float32)
    datasets = [DATASETS[1], DatasetInfo("a", Role.OOD), DatasetInfo("b", Role.OOD)]
    results = Results.from_scores(pd.concat([base, rows]), datasets, DETECTORS, bootstrap=0)
    with pytest.warns(SharedImagesWarning, match=r"a, b share images\. .*: 1 of 6 images .first: b/x\.jpg"):
        pooled = results.pooled(["a", "b"], name="both")
    assert pooled.run.counts["both"] == 5  # 1.jpg is two images: their scores differ
    with pytest.raises(InvalidArgumentError, match="at least two OOD sets, each named once; got a, b, a"):
        results.pooled(["a", "b", "a"])
    with pytest.raises(InvalidArgumentError, match=r"expected OOD sets, got val \(id\)"):
        results.pooled(["a", "val"])


def test_a_summary_of_no_known_metric_is_refused(results):
    with pytest.raises(UnknownNameError, match="metric 'fpr96' of a data set; did you mean"):
        results.summary(["fpr95", "fpr96"])


def test_neither_results_nor_metrics_name_lightning():
    package = Path(oodlit.__file__).parent
    files = [*(package / "results").glob("*.py"), *(package / "metrics").glob("*.py")]
    assert len(files) > 20
    assert not [file.name for file in files if "lightning" in file.read_text(encoding="utf-8").lower()]


def test_threshold_and_accepted_images(results):
    """Whom a detector lets in, the highest score first, equal scores in the order of keys."""
    threshold = results.threshold("good")
    assert threshold == results.run.thresholds["good"]["fpr95"]
    rows, total = results.accepted("good")
    ood = results.scores[results.scores["dataset"].isin(["near", "far"])]
    assert total == int((ood["good"] >= threshold).sum()) > len(rows) == 12
    assert list(rows["good"]) == sorted(ood["good"], reverse=True)[:12]
    tied = Results.from_scores(run_scores().assign(good=1.0), DATASETS, DETECTORS, bootstrap=0)
    rows, total = tied.accepted("good", limit=3)
    assert (list(rows["key"]), total) == (["far/0000", "far/0001", "far/0002"], 130)
    for ask in (results.threshold, results.accepted):
        with pytest.raises(UnknownNameError, match="unknown detector 'god' in these results; did you mean 'good'"):
            ask("god")


@pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
def test_without_id_images_there_is_no_threshold():
    frame = run_scores()
    none = Results.from_scores(frame[frame["dataset"] != "val"], DATASETS, DETECTORS, bootstrap=0)
    assert math.isnan(none.threshold("good"))
    assert none.accepted("good")[1] == 0


def test_what_is_shown_of_results_has_no_values(results):
    assert repr(results) == f"Results(730 images, 2 detectors, 6 data sets, {len(results.table)} values)"


def test_unit_tests_of_results_without_any_are_an_empty_table():
    frame = pd.DataFrame(
        {"key": ["val/0", "val/1", "near/0"], "dataset": ["val", "val", "near"], "group": -1, "label": [0, 1, -1]}
        | {"prediction": [0, 0, 1], "msp": [0.9, 0.5, 0.7]}
    )
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD)]
    table = Results.from_scores(frame, datasets, ["msp"], bootstrap=0).unit_tests()
    assert (table.shape, list(table.columns), table.index.names) == ((0, 1), ["msp"], ["dataset", "test"])
