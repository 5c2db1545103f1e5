"""Several runs: what can be compared, values, ranks, and paired differences between runs."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import DatasetInfo, Results, compare_runs, conclusions, mean_ranks, run_columns, values_of_runs
from oodlit.results.comparing.conclusion import UNITS
from oodlit.results.comparing.detectors import holm, sign_flip_test
from oodlit.roles import Role
from tests.results.support import DATASETS, DETECTORS, run_scores


def run(seed: int = 0, **options: object) -> Results:
    return Results.from_scores(run_scores(seed), DATASETS, DETECTORS, **{"bootstrap": 0, **options})


@pytest.fixture(scope="module")
def runs() -> dict[str, Results]:
    return {"small": run(0), "large": run(1), "huge": run(2)}


def test_columns_are_the_headline_values_in_the_order_of_the_first_run(runs: dict[str, Results]) -> None:
    assert run_columns(runs) == [
        ("val", "id_auroc", ""),
        ("near", "mean_fpr95", ""),
        ("near", "mean_auroc", ""),
        ("far", "fpr95", ""),
        ("far", "auroc", ""),
        ("tests", "unit_test_failures", ""),
    ]


def test_values_are_those_of_the_runs(runs: dict[str, Results]) -> None:
    for dataset, metric, _ in run_columns(runs):
        values = values_of_runs(runs, dataset, metric)
        assert values.shape == (3, 2)
        for name, results in runs.items():
            for detector in DETECTORS:
                assert values.loc[name, detector] == results.value(metric, dataset=dataset, detector=detector)
    assert values_of_runs(runs, "near").equals(values_of_runs(runs, "near", "mean_fpr95"))


def without_first(frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
    return frame.drop(index=frame.index[frame["dataset"] == dataset][0])


def renamed(frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
    frame = frame.copy()
    frame.loc[frame.index[frame["dataset"] == dataset][0], "key"] = f"{dataset}/another"
    return frame


def of(frame: pd.DataFrame, datasets: list[DatasetInfo] = DATASETS) -> Results:
    return Results.from_scores(frame, datasets, DETECTORS, bootstrap=0)


def without_far() -> Results:
    scores = run_scores(1)
    return of(scores[scores["dataset"] != "far"], [info for info in DATASETS if info.name != "far"])


def with_other_groups() -> Results:
    scores = run_scores(1)
    near = scores["dataset"] == "near"
    scores.loc[near, "group"] = (scores.loc[near, "group"] + 1) % 3
    return of(scores)


OTHERS: dict[str, tuple[Callable[[], Results], set[str], str]] = {
    "tpr": (lambda: run(1, tpr=0.9), {"fpr"}, "thresholds accept 95 % of ID images in A and 90 % in B"),
    "rule": (lambda: run(1, rule="interpolated"), {"fpr"}, "the threshold rule or the limit of unit tests differs"),
    "classes": (lambda: run(1, classes={"near": ["sky"]}), {"near"}, "A and B: only one of them has 'cup: cakes'"),
    "no set": (without_far, {"far"}, "B has no data set far"),
    "number": (lambda: of(without_first(run_scores(1), "far")), {"far"}, "far has 40 images in A and 39 in B"),
    "other image": (lambda: of(renamed(run_scores(1), "far")), {"far"}, "the images of far differ between A and B"),
    "other classes of images": (with_other_groups, {"near"}, "the images of near differ between A and B"),
    "other ID image": (
        lambda: of(renamed(run_scores(1), "val")),
        {"val", "near", "far", "tests"},
        "the images of val differ between A and B",
    ),
}
"""A run that is unlike the first, the sets and metrics that it spoils, and what is said of it."""


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_unlike_is_named_and_nothing_else_is_left_out(kind: str, runs: dict[str, Results]) -> None:
    make, spoiled, reason = OTHERS[kind]
    runs = {"A": runs["small"], "B": make()}
    for column in run_columns(runs):
        is_threshold = column.metric in ("mean_fpr95", "fpr95", "unit_test_failures")
        expected = column.dataset in spoiled or ("fpr" in spoiled and is_threshold)
        assert bool(column.reason) == expected, column
        if expected:
            assert reason in column.reason
            with pytest.raises(InvalidArgumentError, match=r"cannot be compared: "):
                values_of_runs(runs, column.dataset, column.metric)


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=6)
    )
)
def test_ranks_are_counted_with_ties_sharing_theirs(rows: list[list[int]]) -> None:
    values = pd.DataFrame(rows, dtype=float)
    of_runs, of_detectors = mean_ranks(values, "auroc")

    def rank(value: float, among: list[float]) -> float:
        return 1 + sum(other > value for other in among) + (among.count(value) - 1) / 2

    columns = [list(column) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        assert of_runs[index] == pytest.approx(np.mean([rank(v, columns[j]) for j, v in enumerate(row)]))
    for index, column in enumerate(columns):
        assert of_detectors[index] == pytest.approx(np.mean([rank(v, rows[i]) for i, v in enumerate(column)]))
    reverse_runs, _ = mean_ranks(values, "fpr95")
    assert (of_runs + reverse_runs).to_numpy() == pytest.approx(len(rows) + 1)


def test_a_detector_that_a_run_lacks_has_no_rank_and_takes_no_part() -> None:
    values = pd.DataFrame({"msp": [0.5, 0.4], "knn": [0.1, np.nan]}, index=["A", "B"])
    of_runs, of_detectors = mean_ranks(values, "fpr95")
    assert of_runs.to_dict() == {"A": 2.0, "B": 1.0}
    assert of_detectors["msp"] == 1.0
    assert np.isnan(of_detectors["knn"])
    with pytest.raises(InvalidArgumentError, match="neither high nor low is better"):
        mean_ranks(values, "accepted95")


@pytest.mark.parametrize("metric", ["fpr95", "auroc"])
def test_classes_are_paired_and_tested_as_one_by_one(runs: dict[str, Results], metric: str) -> None:
    table = compare_runs(runs, metric=metric, over="classes")
    near = table[table["dataset"] == "near"]
    assert len(near) == 4
    assert set(near["over"]) == {"classes"}
    for _, row in near.iterrows():
        first, second = (runs[name].per_class("near", metric)[row["detector"]] for name in (row["run"], "small"))
        differences = (first - second).to_numpy()
        assert row["difference"] == pytest.approx(differences.mean())
        assert row["mean"] - row["mean_baseline"] == pytest.approx(row["difference"])
        assert row["p_value"] == pytest.approx(sign_flip_test(differences))
        draws = np.random.default_rng(0).integers(0, 3, (10_000, 3))
        low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(low), pytest.approx(high))
        gains = differences if metric == "auroc" else -differences
        assert (row["wins"], row["losses"]) == ((gains > 0).sum(), (gains < 0).sum())
    # Three classes cannot decide anything, and do not count in the correction of the others.
    assert (
        near["reason"]
        .str.startswith("a significant difference at level 0.05 among 8 comparisons requires at least")
        .all()
    )
    assert near["p_corrected"].isna().all()
    far = table[table["dataset"] == "far"]
    assert (far["reason"] == "").all()
    assert far["p_corrected"].to_numpy() == pytest.approx(holm(far["p_value"].to_numpy()))
    one = compare_runs({"small": runs["small"], "large": runs["large"]}, metric=metric, over="classes")
    both = table[table["run"] == "large"].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        one.drop(columns=["p_corrected", "better", "reason"]), both.drop(columns=["p_corrected", "better", "reason"])
    )


def test_the_baseline_turns_the_sign(runs: dict[str, Results]) -> None:
    pair = {"small": runs["small"], "large": runs["large"]}
    one, other = compare_runs(pair), compare_runs(pair, baseline="large")
    assert one["difference"].to_numpy() == pytest.approx(-other["difference"].to_numpy())
    assert one["p_value"].to_numpy() == pytest.approx(other["p_value"].to_numpy())
    assert (one["better"] == other["better"]).all()


@pytest.mark.parametrize("metric", ["fpr95", "auroc"])
def test_images_are_paired_as_within_one_run(runs: dict[str, Results], metric: str) -> None:
    """Second source: both models as two detectors of one run."""
    row = compare_runs({"A": runs["small"], "B": runs["large"]}, dataset="far", metric=metric, detectors=["good"]).iloc[
        0
    ]
    assert (row["over"], row["n"]) == ("images", 40)
    merged = runs["small"].scores.rename(columns={"good": "A"}).drop(columns="poor")
    merged = merged.assign(B=runs["large"].scores["good"].to_numpy())
    table = Results.from_scores(merged, DATASETS, ["A", "B"], bootstrap=0).group_of_best("far", metric)
    assert row["p_value"] == pytest.approx(min(1.0, 2 * table["p_value"].iloc[1]))
    values = table.set_index("detector")["value"]
    assert (row["mean"], row["mean_baseline"]) == (pytest.approx(values["B"]), pytest.approx(values["A"]))


@pytest.mark.parametrize("metric", ["fpr95", "auroc"])
def test_images_of_classes_are_paired_within_their_classes(runs: dict[str, Results], metric: str) -> None:
    """Second source: both models as two detectors of one run; few classes leave the decision to the images."""
    pair = {"A": runs["small"], "B": runs["large"]}
    row = compare_runs(pair, dataset="near", metric=metric, detectors=["good"], over="images").iloc[0]
    merged = runs["small"].scores.rename(columns={"good": "A"}).drop(columns="poor")
    merged = merged.assign(B=runs["large"].scores["good"].to_numpy())
    both = Results.from_scores(merged, DATASETS, ["A", "B"], bootstrap=0)
    table = both.group_of_best("near", metric)
    assert (row["over"], row["n"]) == ("images", both.run.counts["near"])
    assert row["p_value"] == pytest.approx(min(1.0, 2 * table["p_value"].iloc[1]))
    assert row["mean"] == pytest.approx(both.value(f"mean_{metric}", dataset="near", detector="B"))
    for name, over in (("near", "images"), ("far", "images")):
        assert set(compare_runs(pair, dataset=name)["over"]) == {over}


@pytest.mark.parametrize(("number", "over"), [(2, "images"), (6, "images"), (7, "classes"), (30, "classes")])
def test_the_test_that_can_decide_is_chosen_and_named(number: int, over: str) -> None:
    rng = np.random.default_rng(number)
    names = tuple(f"c{place}" for place in range(number))
    frame = pd.DataFrame({"group": np.repeat(np.arange(-1, number), [200, *[12] * number])})
    frame = frame.assign(dataset=np.where(frame["group"] < 0, "val", "near"), label=-1, prediction=-1)
    frame["key"] = [f"{name}/{place}" for place, name in enumerate(frame["dataset"])]
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, names)]

    def run_of(gap: float) -> Results:
        scores = rng.normal(size=(len(frame), 2)) + gap * (frame["group"].to_numpy() < 0)[:, None]
        return Results.from_scores(frame.assign(one=scores[:, 0], two=scores[:, 1]), infos, ["one", "two"], bootstrap=0)

    made = {"CNN": run_of(0.5), "MLP": run_of(3.0)}
    table = compare_runs(made)
    assert set(table["over"]) == {over}
    assert (table["better"] == "MLP").all()
    assert (table["reason"] == "").all()
    (text,) = conclusions(table)
    assert text.startswith("MLP is better than CNN with 2 of 2 detectors on near (FPR95, paired over ")
    assert f"{number if over == 'classes' else 12 * number} {over}). Expect the same on {UNITS[over]}" in text
    (text,) = conclusions(compare_runs(made, baseline="MLP"))
    assert text.startswith("MLP is better than CNN with 2 of 2 detectors on near (")


@given(st.lists(st.sampled_from(["A", "B", "", "undefined", "undecided"]), min_size=1, max_size=12))
def test_conclusions_count_every_detector_once(outcomes: list[str]) -> None:
    rows = [
        {
            "better": outcome if outcome in ("A", "B") else "",
            "p_value": np.nan if outcome == "undefined" else 0.5,
            "reason": {"undefined": "a value is undefined", "undecided": "2 classes"}.get(outcome, ""),
        }
        for outcome in outcomes
    ]
    about = {"dataset": "far", "metric": "auroc", "run": "A", "baseline": "B", "over": "images", "n": 5}
    (text,) = conclusions(pd.DataFrame(rows).assign(**about))
    counts = {outcome: outcomes.count(outcome) for outcome in ("A", "B", "", "undefined", "undecided")}
    best = max(counts["A"], counts["B"])
    assert f" {len(outcomes)} detector" in text
    for word in ("undefined", "undecided"):
        assert (f"{word}: {counts[word]}" in text) == (counts[word] > 0)
    assert ("2 classes" in text) == (counts["undecided"] > 0)  # the reason is that of the undecided ones
    assert "a value is undefined" not in text
    if best:
        assert text.startswith("A is better" if counts["A"] >= counts["B"] else "B is better")
        assert f"with {best} of" in text
        assert ("worse: " in text) == (min(counts["A"], counts["B"]) > 0)
    else:
        assert text.startswith("No significant difference between A and B")


def test_a_clear_difference_is_found_and_equal_runs_are_not_told_apart(runs: dict[str, Results]) -> None:
    better = runs["small"].scores.copy()
    outside = ~better["dataset"].isin(["val", "train"])
    better.loc[outside, DETECTORS] -= 10.0
    clear = Results.from_scores(better, DATASETS, DETECTORS, bootstrap=0)
    table = compare_runs({"before": runs["small"], "after": clear, "again": runs["small"]})
    far = table[table["dataset"] == "far"].set_index(["detector", "run"])["better"]
    assert far["poor", "after"] == "after"
    same = table[table["run"] == "again"]
    assert (same["p_value"] == 1).all()
    assert (same["better"] == "").all()
    assert (same["difference"] == 0).all()


def test_what_cannot_be_compared_is_left_out_with_its_reason(runs: dict[str, Results]) -> None:
    make, _, reason = OTHERS["number"]
    other = make()
    table = compare_runs({"A": runs["small"], "B": other})
    assert set(table["dataset"]) == {"near"}
    assert table.attrs["left_out"] == {"far": reason}
    with pytest.raises(InvalidArgumentError, match="far has 40 images in A and 39 in B"):
        compare_runs({"A": runs["small"], "B": other}, dataset="far")


def test_a_set_without_images_makes_an_undefined_row() -> None:
    few = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("a", "b"))]
    frame = run_scores()
    with pytest.warns(UserWarning, match="undefined|no image"):
        results = Results.from_scores(frame[frame["dataset"] == "val"], few, DETECTORS, bootstrap=0)
    table = compare_runs({"A": results, "B": results})
    assert table[["difference", "p_value", "p_corrected", "ci_low", "wins"]].isna().all(axis=None)
    assert (table["better"] == "").all()
    assert (table["reason"] == "a value is undefined").all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"baseline": "smal"}, UnknownNameError, "did you mean 'small'"),
        ({"detectors": ["goood"]}, UnknownNameError, "'goood' in at least one of the runs; did you mean 'good'"),
        ({"detectors": []}, InvalidArgumentError, "at least one detector .* got detectors="),
        ({"dataset": "neer"}, UnknownNameError, "did you mean 'near'"),
        ({"metric": "aupr_s"}, UnknownNameError, "metric 'aupr_s' of runs"),
        ({"over": "image"}, UnknownNameError, "did you mean 'images'"),
        ({"over": "classes", "dataset": "far"}, InvalidArgumentError, "two or more classes; pass over='images'"),
        ({"test": "t"}, InvalidArgumentError, "'permutation' or 'sign'"),
        ({"repetitions": 0}, InvalidArgumentError, "at least 1"),
    ],
)
def test_wrong_settings_are_errors(
    runs: dict[str, Results], change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare_runs(runs, **change)


def test_one_run_or_none_is_no_comparison(runs: dict[str, Results]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least two"):
        compare_runs({"small": runs["small"]})
    with pytest.raises(InvalidArgumentError, match="expected at least one run"):
        run_columns({})
    with pytest.raises(UnknownNameError, match="common data set"):
        values_of_runs(runs, "nowhere")
    with pytest.raises(UnknownNameError, match="of 'near'"):
        values_of_runs(runs, "near", "aupr_s")


@pytest.mark.parametrize("dataset", ["val"])
def test_images_whose_labels_contradict_are_not_paired(dataset: str) -> None:
    """A shuffled loader numbers the images in another order."""
    scores = run_scores(1)
    rows = scores.index[scores["dataset"] == dataset]
    scores.loc[rows, "label"] = scores.loc[rows, "label"].to_numpy()[::-1]
    columns = run_columns({"A": run(0), "B": of(scores)})
    assert all(
        f"images of {dataset} with the same key have different labels in A and B" in reason for _, _, reason in columns
    )


def test_other_numbers_of_the_same_classes_are_no_contradiction() -> None:
    scores = run_scores(1)
    known = scores["label"] >= 0
    for column in ("label", "prediction"):
        scores.loc[known, column] = (scores.loc[known, column] + 1) % 3
    assert not any(reason for *_, reason in run_columns({"A": run(0), "B": of(scores)}))


def test_the_same_classes_in_another_order_are_the_same(runs: dict[str, Results]) -> None:
    names = runs["small"].dataset("near").class_names
    chosen = {"one": runs["small"].recompute(classes={"near": names[:2]})}
    chosen["other"] = runs["large"].recompute(classes={"near": names[1::-1]})
    assert not values_of_runs(chosen, "near", "mean_fpr95").isna().all(axis=None)
    assert all(not reason for _, _, reason in run_columns(chosen))
