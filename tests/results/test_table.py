"""The tidy table: every value is the plain function's, nothing is dropped, order of arrival does not matter."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from oodlit import metrics as F
from oodlit.errors import DataError, InvalidArgumentError, NonFiniteScoreError, UnknownNameError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import DatasetInfo, Results
from oodlit.results.evaluation.table_rows import COLUMNS
from oodlit.roles import Role
from tests.results.support import DATASETS, DETECTORS, SIZES, run_scores


@pytest.fixture(scope="module")
def results():
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, run={"note": "kept"}, bootstrap=200)


def part(results, dataset, group=None):
    frame = results.scores[results.scores["dataset"] == dataset]
    return frame if group is None else frame[frame["group"] == group]


FUNCTIONS = {
    "fpr95": F.fpr_at_tpr,
    "auroc": F.auroc,
    "aupr_s": F.aupr_success,
    "aupr_e": F.aupr_error,
    "detection_error": F.detection_error,
}


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("metric", [*FUNCTIONS, "oscr"])
def test_ood_values_are_those_of_the_functions(results, detector, metric):
    id_rows = part(results, "val")
    is_correct = (id_rows["label"] == id_rows["prediction"]).to_numpy()

    def function(ood):
        if metric == "oscr":
            return F.oscr(id_rows[detector], ood[detector], is_correct=is_correct)
        return FUNCTIONS[metric](id_rows[detector], ood[detector])

    names = DATASETS[2].class_names
    per_class = [function(part(results, "near", group)) for group in range(3)]
    for name, value in zip(names, per_class, strict=True):
        found = results.value(metric, dataset="near", detector=detector, ood_class=name)
        assert found == pytest.approx(value, abs=1e-12)
    mean = results.value(f"mean_{metric}", dataset="near", detector=detector)
    assert mean == pytest.approx(sum(per_class) / 3, abs=1e-12)
    pooled = results.value(f"pooled_{metric}", dataset="near", detector=detector)
    assert pooled == pytest.approx(function(part(results, "near")), abs=1e-12)
    plain = results.value(metric, dataset="far", detector=detector)
    assert plain == pytest.approx(function(part(results, "far")), abs=1e-12)


@pytest.mark.parametrize("detector", DETECTORS)
def test_full_spectrum_counts_shifted_images_as_id(results, detector):
    spectrum = pd.concat([part(results, "val"), part(results, "shifted")])[detector]
    far = part(results, "far")[detector]
    assert results.value("fs_auroc", dataset="far", detector=detector) == F.auroc(spectrum, far)
    assert results.value("fs_fpr95", dataset="far", detector=detector) == F.fpr_at_tpr(spectrum, far)
    row = results.table.query("metric == 'mean_fs_fpr95' and detector == @detector").iloc[0]
    assert (row["n_id"], row["n_ood"]) == (SIZES["val"] + SIZES["shifted"], SIZES["near"])


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize(("metric", "keep"), [("der95", 0.95), ("der99", 0.99)])
def test_detection_error_rates(results, detector, metric, keep):
    train = part(results, "train")
    threshold = F.acceptance_threshold(train[train["label"] == train["prediction"]][detector], tpr=keep)
    assert results.run.thresholds[detector][metric] == threshold
    for dataset in ("val", "shifted", "far"):
        rows = part(results, dataset)
        correct = (rows["label"] == rows["prediction"]).to_numpy()
        expected = F.detection_error_rate(rows[detector], correct, threshold=threshold)
        assert results.value(metric, dataset=dataset, detector=detector) == expected
    accepted = [(part(results, "near", g)[detector] >= threshold).mean() for g in range(3)]
    assert results.value(f"mean_{metric}", dataset="near", detector=detector) == pytest.approx(np.mean(accepted))


def test_id_metrics_and_accuracy(results):
    rows = part(results, "val")
    correct = (rows["label"] == rows["prediction"]).to_numpy()
    assert results.value("accuracy", dataset="val") == correct.mean()
    for name, function in (("id_auroc", F.id_auroc), ("aurc", F.aurc), ("augrc", F.augrc)):
        assert results.value(name, dataset="val", detector="good") == function(rows["good"], correct)
    for group, name in enumerate(("fog", "snow")):
        kind = part(results, "shifted", group)
        expected = F.accuracy(kind["prediction"].to_numpy(), kind["label"].to_numpy())
        assert results.value("accuracy", dataset="shifted", ood_class=name) == expected
        accepted = (kind["good"] >= results.run.thresholds["good"]["fpr95"]).mean()
        assert results.value("accepted95", dataset="shifted", detector="good", ood_class=name) == accepted


def test_unit_tests_have_counts_and_no_mean(results):
    rows = results.table[results.table["dataset"] == "tests"]
    assert set(rows["metric"]) == {"fpr95", "unit_test_failures", "unit_test_passes"}
    grid = results.unit_tests()
    assert list(grid.index) == [("tests", "black"), ("tests", "white")]
    for detector in DETECTORS:
        failed = sum(Fraction(round(20 * fpr), 20) > Fraction(1, 10) for fpr in grid[detector])
        assert results.value("unit_test_failures", dataset="tests", detector=detector) == failed
        assert results.value("unit_test_passes", dataset="tests", detector=detector) == 2 - failed


def test_columns_counts_and_rules(results):
    table = results.table
    assert tuple(table.columns) == COLUMNS
    assert not table.duplicated(["detector", "dataset", "ood_class", "metric"]).any()
    assert table["n_id"].dtype == table["n_ood"].dtype == np.int64
    assert set(table.loc[table["metric"].str.contains("fpr|der|accepted"), "rule"]) == {"attained"}
    ood = table[table["dataset"].isin(["near", "far"])]
    assert (ood["n_id"] > 0).all()
    assert (ood["n_ood"] > 0).all()
    assert results.run.counts == SIZES
    assert results.run.extra["note"] == "kept"
    assert results.run.undefined == []
    with_interval = table.dropna(subset=["ci_low"])
    assert (with_interval["ci_low"] <= with_interval["value"] + 1e-12).all()
    assert (with_interval["ci_high"] >= with_interval["value"] - 1e-12).all()
    for metric in (
        "fpr95",
        "auroc",
        "mean_fpr95",
        "mean_auroc",
        "pooled_fpr95",
        "mean_fs_auroc",
        "accuracy",
        "id_auroc",
        "augrc",
        "der95",
        "mean_der99",
    ):
        assert table.loc[table["metric"] == metric, "ci_low"].notna().all(), metric


def test_order_of_arrival_changes_nothing(results):
    again = Results.from_scores(run_scores().iloc[::-1], DATASETS, DETECTORS, run={"note": "kept"}, bootstrap=200)
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)
    pd.testing.assert_frame_equal(again.scores, results.scores, check_exact=True)
    assert again.run == results.run
    assert list(part(results, "near")["key"]) == sorted(part(results, "near")["key"])


def test_other_sets_and_detectors_change_no_value(results):
    frame = run_scores()
    fewer = [info for info in DATASETS if info.name not in ("far", "tests")]
    small = Results.from_scores(frame[frame["dataset"].isin([i.name for i in fewer])], fewer, ["poor"], bootstrap=200)
    columns = ["detector", "dataset", "ood_class", "metric"]
    both = small.table.merge(results.table, on=columns, suffixes=("", "_all"))
    assert len(both) == len(small.table)
    for name in ("value", "ci_low", "ci_high", "n_id", "n_ood"):
        np.testing.assert_array_equal(both[name], both[f"{name}_all"])


def test_pooled_and_macro_averages_are_named_apart():
    """ID 1..100, set A 10 x 50, set B 1000 x 0."""
    scores = [*range(1, 101), *[50] * 10, *[0] * 1000]
    frame = pd.DataFrame({"score": np.array(scores, dtype=float), "label": -1, "prediction": -1})
    frame["dataset"] = ["val"] * 100 + ["ood"] * 1010
    frame["group"] = [-1] * 100 + [0] * 10 + [1] * 1000
    frame["key"] = [f"{d}/{i}" for i, d in enumerate(frame["dataset"])]
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("ood", Role.OOD, ("A", "B"))]
    results = Results.from_scores(frame, datasets, ["score"], bootstrap=0)
    assert list(results.per_class("ood")["score"]) == [1.0, 0.0]
    assert list(results.per_class("ood")["n"]) == [10, 1000]
    assert results.value("mean_fpr95", dataset="ood", detector="score") == 0.5
    assert results.value("pooled_fpr95", dataset="ood", detector="score") == pytest.approx(0.0099, abs=5e-5)


def test_an_empty_class_is_a_row_with_a_reason():
    frame = run_scores()
    frame = frame[(frame["dataset"] != "near") | (frame["group"] != 1)]
    with pytest.warns(UndefinedMetricWarning, match=r"cup: cakes \(there is no OOD score") as caught:
        results = Results.from_scores(frame, DATASETS, DETECTORS, bootstrap=50)
    assert len(caught) == 1
    assert math.isnan(results.value("fpr95", dataset="near", detector="good", ood_class="cup: cakes"))
    others = [results.value("fpr95", dataset="near", detector="good", ood_class=n) for n in ("high heels", "sky")]
    assert results.value("mean_fpr95", dataset="near", detector="good") == math.fsum(others) / 2
    assert not math.isnan(results.value("pooled_fpr95", dataset="near", detector="good"))
    reasons = {(e.ood_class, e.metric): e.reason for e in results.run.undefined}
    assert reasons["cup: cakes", "fpr95"] == "there is no OOD score"
    assert ("", "mean_fpr95") not in reasons
    assert (
        "means over the classes of 'near' use 2 of 3 classes; the others have no images: cup: cakes"
        in results.run.notes
    )
    chosen = results.recompute(classes={"near": ["high heels", "sky"]})
    own, same = (r.table[(r.table["ood_class"] == "") & (r.table["dataset"] == "near")] for r in (results, chosen))
    pd.testing.assert_frame_equal(own.reset_index(drop=True), same.reset_index(drop=True))


@pytest.mark.parametrize("dataset", ["val", "near", "far", "shifted", "tests"])
def test_a_set_without_images_is_undefined_not_missing(dataset):
    frame = run_scores()
    with pytest.warns(UndefinedMetricWarning):
        results = Results.from_scores(frame[frame["dataset"] != dataset], DATASETS, DETECTORS, bootstrap=20)
    assert results.run.counts[dataset] == 0
    # Without ID images nothing can be accepted or refused: those rows are all undefined.
    rows = results.table[(results.table["dataset"] == dataset)]
    assert len(rows)
    assert rows["value"].isna().all()


def test_what_is_not_computed_is_noted():
    frame = run_scores()
    frame = frame[frame["dataset"] != "train"].assign(label=-1)
    results = Results.from_scores(frame, DATASETS[1:], DETECTORS, bootstrap=0)
    notes = "\n".join(results.run.notes)
    assert "der95, der99 could not be computed, because no training images were scored" in notes
    assert "accuracy of 'val' could not be computed, because the images have no labels" in notes
    assert not results.table["metric"].str.contains("der|accuracy|oscr").any()
    stated = [DatasetInfo("val", Role.ID, num_samples=300), DatasetInfo("far", Role.OOD, num_samples=41)]
    frame = frame[frame["dataset"].isin(["val", "far"])]
    results = Results.from_scores(frame, stated, DETECTORS, bootstrap=0)
    assert "data set 'far' has 41 images, but 40 were scored" in results.run.notes


def test_bad_scores_are_refused():
    frame = run_scores()
    nan = frame.copy()
    nan.loc[nan["key"] == "near/0007", "poor"] = np.nan
    with pytest.raises(NonFiniteScoreError, match=r"'poor' returned NaN for 1 of 730 .*near/0007"):
        Results.from_scores(nan, DATASETS, DETECTORS)
    with pytest.raises(DataError, match=r"repeated keys: 1 \(first: far/0003"):
        Results.from_scores(pd.concat([frame, frame[frame["key"] == "far/0003"]]), DATASETS, DETECTORS)
    moved = frame["group"].where(frame["key"] != "near/0005", 3)
    with pytest.raises(
        DataError,
        match=r"'near' to contain indices of its class names \(0 to 2\), got others in 1 of 90 rows \(first: near/0005",
    ):
        Results.from_scores(frame.assign(group=moved), DATASETS, DETECTORS)
    with pytest.raises(UnknownNameError, match="unknown data set 'tests' in the scores"):
        Results.from_scores(frame, DATASETS[:-1], DETECTORS)
    with pytest.raises(InvalidArgumentError, match=r"missing columns energy; found"):
        Results.from_scores(frame, DATASETS, ["energy"])
    with pytest.raises(InvalidArgumentError, match="'label' is float64; expected integers"):
        Results.from_scores(frame.assign(label=1.5), DATASETS, DETECTORS)
    with pytest.raises(InvalidArgumentError, match=r"'good' is .*; expected numbers"):
        Results.from_scores(frame.assign(good="high"), DATASETS, DETECTORS)
    with pytest.raises(InvalidArgumentError, match="reserved detector names: model;"):
        Results.from_scores(frame.assign(model=1.0), DATASETS, ["model"])
    with pytest.raises(InvalidArgumentError, match=r"detector names must be distinct, but these are repeated: good$"):
        Results.from_scores(frame, DATASETS, ["good", "poor", "good"])


def test_bad_settings_are_refused():
    frame = run_scores()
    with pytest.raises(InvalidArgumentError, match="exactly one data set with role 'id', got 0"):
        Results.from_scores(frame, DATASETS[2:], DETECTORS)
    with pytest.raises(InvalidArgumentError, match=f"names must be distinct, but one is repeated: {DATASETS[0].name}$"):
        Results.from_scores(frame, [*DATASETS, DATASETS[0]], DETECTORS)
    with pytest.raises(InvalidArgumentError, match="class names occur twice: a"):
        DatasetInfo("x", Role.OOD, ("a", "a"))
    with pytest.raises(UnknownNameError, match=r"class 'skyy' of 'near'; did you mean 'sky'"):
        Results.from_scores(frame, DATASETS, DETECTORS, classes={"near": ["skyy"]})
    for change, message in (
        ({"tpr": 95.0}, "tpr .* got 95"),
        ({"rule": "linear"}, "rule .* got 'linear'"),
        ({"bootstrap": -1}, "bootstrap .* got -1"),
        ({"confidence": 95.0}, "confidence .* got 95"),
        ({"unit_test_limit": 10.0}, "unit_test_limit .* got 10"),
        ({"der": (95.0,)}, "der.* got 95"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            Results.from_scores(frame, DATASETS, DETECTORS, **change)


def test_infinite_scores_are_ordered():
    frame = run_scores()
    frame.loc[frame["dataset"] == "far", "good"] = -np.inf
    frame.loc[frame["key"] == "val/0000", "good"] = np.inf
    results = Results.from_scores(frame, DATASETS, DETECTORS, bootstrap=20)
    assert results.value("fpr95", dataset="far", detector="good") == 0
    assert results.value("auroc", dataset="far", detector="good") == 1
    assert results.recompute(rule="interpolated").value("fpr95", dataset="far", detector="good") == 0
