"""Limits: what they say, which values cross them, and that neither a wrong name nor an undefined value passes."""

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit import Results, Role
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import DatasetInfo, Finding, Limit, Settings, crossings
from oodlit.results.limits import describe_check, failed_tests, read_limits
from tests.results.pool_support import pool_results

DATASETS = [
    DatasetInfo("val", Role.ID, ("cat", "dog")),
    DatasetInfo("near", Role.OOD, ("seven", "Caracal caracal: caracal")),
    DatasetInfo("far", Role.OOD),
    DatasetInfo("tests", Role.UNIT_TEST, ("black", "white")),
]


def make() -> Results:
    """100 ID images with scores 0 .. 99: the threshold is 5."""
    parts = [
        ("val", -1, np.arange(100.0)),
        ("near", 0, np.array([1.0, 2.0, 3.0, 50.0])),
        ("near", 1, np.array([0.0, 1.0])),
        ("far", -1, np.array([7.0, 1.0])),
        ("tests", 0, np.full(10, -1.0)),
        ("tests", 1, np.array([*[0.0] * 8, 60.0, 70.0])),
    ]
    rows = [
        {
            "key": f"{name}/{group}-{number}",
            "dataset": name,
            "group": group,
            "label": number % 2 if name == "val" else -1,
            "prediction": 0 if number < 10 else number % 2,
            "mine": score,
            "other": -score,
        }
        for name, group, scores in parts
        for number, score in enumerate(scores)
    ]
    run = {"not_applicable": {"vim": "needs the linear head"}, "every_detector": True}
    return Results.from_scores(pd.DataFrame(rows), DATASETS, ["mine", "other"], run=run, bootstrap=200)


RESULTS = make()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("msp: fpr95 > 0.1", Limit("msp", "fpr95", ">", 0.1)),
        ("msp:mean_fpr95 on ninco>=40%", Limit("msp", "mean_fpr95", ">=", 0.4, "ninco")),
        (
            "*: fpr95 on near/Caracal caracal: caracal < 1e-1",
            Limit("*", "fpr95", "<", 0.1, "near", "Caracal caracal: caracal"),
        ),
        ("  model: accuracy on val <= 0.5 ", Limit("model", "accuracy", "<=", 0.5, "val")),
    ],
)
def test_texts_are_read_and_written_again(text: str, expected: Limit) -> None:
    assert Limit.of(text) == expected
    assert Limit.of(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "msp", "msp: fpr95", "msp fpr95 > 1", "msp: fpr95 = 1", "msp: fpr95 > many", "msp: fpr95 > nan"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'DETECTOR: METRIC \[on DATASET"):
        Limit.of(text)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("mine: fpr95 > 50", "0% to 100%, got 50; did you mean 50%"),
        ("*: mean_fpr95 on near >= 1.5", "did you mean 1.5%"),
        ("mine: pooled_fpr95 > 5000%", "0% to 100%, got 5000%$"),
        ("msp: fpr95 on near > 101%", "0% to 100%, got 101%$"),
        ("msp: auroc < -5%", "0% to 100%, got -5%$"),
        ("mine: auroc < -70", "0% to 100%"),
        ("model: accuracy < 76", "did you mean 76%"),
    ],
)
def test_a_share_is_from_zero_to_one(text: str, advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"is a share.*{advice}") as caught:
        Limit.of(text)
    assert re.findall("limit '(.*?)':", str(caught.value)) in ([], [text])  # no limit that nobody wrote


def test_counts_have_numbers_above_one_and_no_percent() -> None:
    assert Limit.of("mine: unit_test_failures > 3").number == 3
    with pytest.raises(InvalidArgumentError, match="is a count"):
        Limit.of("mine: unit_test_failures > 3%")


def shares_of(*parts: tuple[int, int]) -> Results:
    """Classes of which k of n images are accepted."""
    rows = [("val", -1, float(score)) for score in range(100)]
    rows += [("near", group, 50.0 if i < k else 0.0) for group, (k, n) in enumerate(parts) for i in range(n)]
    frame = pd.DataFrame(rows, columns=["dataset", "group", "mine"]).assign(label=-1, prediction=-1)
    frame["key"] = [str(number) for number in range(len(frame))]
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, tuple(f"class {i}" for i in range(len(parts))))]
    return Results.from_scores(frame, infos, ["mine"], bootstrap=0)


@pytest.mark.parametrize(
    ("parts", "limit"),
    [([(1, 10)] * 3, "10%"), ([(7, 10)] * 6, "0.7"), ([(1, 10), (2, 10), (3, 10)], "0.2"), ([(1, 3)] * 7, str(1 / 3))],
)
def test_a_mean_of_shares_does_not_cross_its_own_value(parts: list[tuple[int, int]], limit: str) -> None:
    results = shares_of(*parts)
    for sign, crosses in ((">", False), ("<", False), (">=", True), ("<=", True)):
        assert bool(crossings(results, [f"mine: mean_fpr95 {sign} {limit}"])) is crosses, sign


def test_every_detector_means_those_that_were_asked_for() -> None:
    failed = Finding("failed", "detector 'knn' is not among the results: it gave NaN")
    run = {"not_applicable": {"knn": "gave NaN"}, "findings": [failed]}
    results = Results.from_scores(RESULTS.scores, DATASETS, ["mine", "other"], run=run, bootstrap=0)
    assert not crossings(results, ["mine: fpr95 > 1"])
    with pytest.raises(UnknownNameError, match=r"'\*' means every requested detector, but detector 'knn'"):
        crossings(results, ["*: fpr95 > 1"])


@pytest.mark.parametrize("every", [True, False])
def test_every_detector_includes_those_that_do_not_apply_if_they_were_asked_for(every: bool) -> None:
    run = {"not_applicable": {"vim": "needs the linear head"}, "every_detector": every}
    results = Results.from_scores(RESULTS.scores, DATASETS, ["mine", "other"], run=run, bootstrap=0)
    if every:
        assert not crossings(results, ["*: fpr95 > 1"])
    else:
        with pytest.raises(
            UnknownNameError, match=r"'\*' means .* detector 'vim' is not among the results, because it needs"
        ):
            crossings(results, ["*: fpr95 > 1"])


@given(st.sampled_from([">", ">=", "<", "<="]), st.floats(0, 1))
def test_a_limit_is_crossed_as_it_says(sign: str, number: float) -> None:
    value = RESULTS.value("mean_auroc", dataset="near", detector="mine")
    expected = {">": value > number, ">=": value >= number, "<": value < number, "<=": value <= number}[sign]
    assert bool(crossings(RESULTS, [Limit("mine", "mean_auroc", sign, number, "near")])) is expected


def test_what_is_said_of_a_class() -> None:
    (found,) = crossings(RESULTS, ["mine: fpr95 on near/seven > 0.1"])
    assert str(found) == (
        "mine: fpr95 on near/seven is 25 % [4.559, 69.94] (fails if > 10%); accepted images: near/0-3"
    )
    assert found.keys == ("near/0-3",)


def test_what_is_said_of_unit_tests() -> None:
    assert RESULTS.threshold("mine") == 5.0
    (found,) = crossings(RESULTS, ["mine: unit_test_failures > 0"])
    assert str(found) == (
        "mine: unit_test_failures on tests is 1 (fails if > 0); failed: white; accepted images: tests/1-8, tests/1-9"
    )
    assert failed_tests(RESULTS, "mine", "tests") == ["white"]
    (many,) = crossings(RESULTS, ["other: unit_test_failures > 0"])
    assert str(many).endswith("tests/0-3, tests/0-4 and 15 more")


def test_which_values_a_limit_is_about() -> None:
    def places(text: str) -> list[str]:
        return [f"{c.row['detector']} {c.row['dataset']}/{c.row['ood_class']}" for c in crossings(RESULTS, [text])]

    assert places("mine: fpr95 >= 0") == [
        "mine near/seven", "mine near/Caracal caracal: caracal", "mine far/", "mine tests/black", "mine tests/white",
    ]  # fmt: skip
    assert places("mine: fpr95 on tests >= 0") == places("mine: fpr95 on tests/* >= 0") == [
        "mine tests/black", "mine tests/white",
    ]  # fmt: skip
    assert places("*: mean_auroc >= 0") == ["mine near/", "mine far/", "other near/", "other far/"]
    assert places("*: mean_auroc on near >= 0") == ["mine near/", "other near/"]
    assert places("model: accuracy < 1") == ["model val/"]
    assert places("mine: fpr95 on far >= 0.9") == []


@pytest.mark.parametrize("prefix", ["mean_", "pooled_"])
def test_a_set_without_classes_does_not_slip_through_a_limit_of_the_mean(prefix: str) -> None:
    """Its plain value stands beside the means of the others, as in tables of headlines."""
    (found,) = crossings(RESULTS, [f"mine: {prefix}fpr95 > 0.49"])
    assert str(found).startswith("mine: fpr95 on far is 50 % [")
    assert not crossings(RESULTS, [f"mine: {prefix}fpr95 > 0.51"])
    with pytest.raises(UnknownNameError, match="the run has no such value"):
        crossings(RESULTS, [f"mine: {prefix}fpr95 on far > 0.49"])


def test_the_values_that_were_held_are_said_the_worst_first() -> None:
    said = describe_check(RESULTS, Limit.of("mine: mean_fpr95 > 0.7"))
    assert said == "mine: mean_fpr95 > 70% was compared with 2 values: far 50 % (fpr95), near 12.5 %"
    assert describe_check(RESULTS, Limit.of("*: unit_test_failures < 0")) == (
        "*: unit_test_failures < 0 was compared with 2 values: mine: tests 1, other: tests 2"
    )
    assert describe_check(RESULTS, Limit.of("*: fpr95 > 1")).endswith(" and 2 more")


def test_wrongly_classified_images_are_named() -> None:
    (found,) = crossings(RESULTS, ["model: accuracy < 96%"])
    assert found.keys == ("val/-1-1", "val/-1-3", "val/-1-5", "val/-1-7", "val/-1-9")
    assert str(found).startswith("model: accuracy on val is 95 % [")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mime: fpr95 > 0", r"^limit 'mime: fpr95 > 0%': unknown detector 'mime'; did you mean 'mine'"),
        ("mine: fpr96 > 0", r"^limit .*: unknown metric 'fpr96'; did you mean 'fpr95'"),
        ("mine: fpr95 on nearr > 0", r"^limit .*: unknown data set 'nearr'; did you mean 'near'"),
        ("mine: fpr95 on near/sevn > 0", r"^limit .*: unknown class 'sevn'; did you mean 'seven'"),
        ("mine: accuracy > 0", r"the run has no such value; available values of accuracy: model: accuracy on val"),
        ("mine: der95 > 0", r"the run has no such value; available values of der95: none"),
        ("vim: fpr95 > 0", r"the results have no detector 'vim', because it needs the linear head"),
    ],
)
def test_wrong_names_are_errors(text: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        crossings(RESULTS, [text])


def test_an_undefined_value_is_an_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        scores = RESULTS.scores.assign(prediction=RESULTS.scores["label"])
        results = Results.from_scores(scores, DATASETS, ["mine", "other"], bootstrap=0)
    assert math.isnan(results.value("id_auroc", dataset="val", detector="mine"))
    with pytest.raises(
        InvalidArgumentError, match=r"of mine on val is undefined \(all predictions are correct.* never passes"
    ):
        crossings(results, ["mine: id_auroc < 0.9"])


def test_names_are_checked_before_a_run() -> None:
    limit = Limit.of("mine: fpr95 on near > 0")
    limit.check_names(["mine"], ["near"], Settings())
    with pytest.raises(UnknownNameError, match="unknown metric"):
        limit.check_names(["mine"], ["near"], Settings(tpr=0.9))


def test_files_of_limits(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("fail_if:\n- mine: fpr95 on near > 0.5\n- 'model: accuracy < 0.9'\n")
    assert list(map(str, read_limits(file))) == ["mine: fpr95 on near > 50%", "model: accuracy < 90%"]
    for text, message in (
        ("fail_if: []", "must contain one list named fail_if"),
        ("fail_it: [a]", "must contain one list named fail_if"),
        ("fail_if: [mine]", "limit 'mine'"),
        ("fail_if: [{a: 1, b: 2}]", "limit .*'DETECTOR: METRIC"),
        ("{", "not valid YAML"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidArgumentError, match=message):
            read_limits(file)
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        read_limits(tmp_path / "none.yaml")


# --- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detector", ["msp", "good"])
def test_limits_of_levels_name_the_accepted_images_of_their_classes(detector):
    """A level is no class of the data, and holds other classes for every detector."""
    results = pool_results(names=tuple(f"kind {i}" for i in range(60)))  # 60 classes, levels of 3: some are in none
    classes = results.severities("pool", detector).set_index("ood_class")["levels"]
    rows = results.scores.query("dataset == 'pool'")
    accepted = rows[rows[detector] >= results.threshold(detector)]
    of_image = accepted["group"].map(lambda group: classes[f"kind {group}"])
    for place, is_in in {
        "s10": of_image.map(lambda levels: "s10" in levels.split()),
        "s1": of_image.map(lambda levels: "s1" in levels.split()),
        "": of_image != "",
    }.items():
        metric = "fpr95" if place else "mean_fpr95"
        (crossing,) = crossings(results, [f"{detector}: {metric} on pool{place and '/'}{place} >= 0"])
        assert crossing.keys == tuple(sorted(accepted["key"][is_in]))
        if place:
            assert len(crossing.keys) == round(crossing.row["value"] * crossing.row["n_ood"])
    assert (of_image == "").any()
    assert crossings(results, [f"{detector}: auroc on pool/* >= 0"])[10].keys == ()
    with pytest.raises(UnknownNameError, match=r"limit .*: unknown class 'kind 1'"):
        crossings(results, [f"{detector}: auroc on pool/kind 1 >= 0"])


def test_messages_have_readable_keys_one_unit_and_no_values_of_other_detectors() -> None:
    scores = RESULTS.scores.assign(key=RESULTS.scores["key"] + "%2Epng")
    results = Results.from_scores(scores, RESULTS.datasets, RESULTS.detectors, bootstrap=0)
    (found,) = crossings(results, ["mine: fpr95 on near/seven > 10%"])
    assert (
        str(found) == "mine: fpr95 on near/seven is 25 % [4.559, 69.94] (fails if > 10%); accepted images: near/0-3.png"
    )
    with pytest.raises(UnknownNameError, match=r"available values of mean_fpr95: mine: mean_fpr95 on near$"):
        crossings(results, ["mine: mean_fpr95 on far < 0.1"])
