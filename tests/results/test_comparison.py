"""Paired comparison of detectors over OOD classes."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import DatasetInfo, Results, compare
from oodlit.results.comparing.detectors import holm, sign_flip_test, undecidable
from oodlit.roles import Role
from tests.results.support import DATASETS, DETECTORS, run_scores


def many_classes(classes=20, size=30, seed=0):
    """Three detectors, b better than a in every class, c equal to a."""
    generator = np.random.default_rng(seed)
    n = 500 + classes * size
    group = np.concatenate([np.full(500, -1), np.repeat(np.arange(classes), size)])
    noise, difficulty = generator.normal(size=n), generator.normal(size=classes)
    ood = np.where(group < 0, 0, 1.0 + 0.3 * difficulty[group])
    frame = pd.DataFrame({"group": group, "label": -1, "prediction": -1})
    frame["dataset"] = np.where(group < 0, "val", "ood")
    frame["key"] = [f"{d}/{i:05d}" for i, d in enumerate(frame["dataset"])]
    frame["a"], frame["b"], frame["c"] = noise - ood, noise - 1.8 * ood, 2 * (noise - ood)
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("ood", Role.OOD, tuple(f"class {i}" for i in range(classes)))]
    return Results.from_scores(frame, datasets, ["a", "b", "c"], bootstrap=0)


def test_a_better_detector_is_found_and_equal_ones_are_not_told_apart():
    table = compare(many_classes(), "b", metric="fpr95")
    assert list(table["other"]) == ["a", "c"]
    assert (table["difference"] < 0).all()
    assert (table["better"] == "b").all()
    assert (table["ci_high"] < 0).all()
    assert (table["wins"] > 15).all()
    assert (table["p_corrected"] >= table["p_value"]).all()
    same = many_classes().compare("a", "c")
    assert same.loc[0, "difference"] == 0
    assert same.loc[0, "p_value"] == 1
    assert same.loc[0, "better"] == ""
    assert same.loc[0, "ties"] == 20
    higher = many_classes().compare("a", "b", metric="auroc").iloc[0]
    assert higher["better"] == "b"
    assert higher["losses"] > 15


def test_the_sign_test_is_the_binomial_test():
    row = many_classes().compare("a", "b", test="sign").iloc[0]
    assert row["p_value"] == pytest.approx(binomtest(int(row["wins"]), int(row["wins"] + row["losses"])).pvalue)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=7))
def test_sign_flips_are_enumerated(differences):
    values = np.array(differences) / 10
    patterns = [abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
                for signs in itertools.product([1, -1], repeat=len(differences))]  # fmt: skip
    expected = sum(p >= abs(sum(differences)) for p in patterns) / len(patterns)
    assert sign_flip_test(values) == pytest.approx(expected)


def test_drawn_sign_flips_agree_with_scipy():
    differences = np.random.default_rng(3).normal(0.2, 1, 25)
    expected = permutation_test(
        (differences, np.zeros(25)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=9999,
        random_state=np.random.default_rng(0),  # scipy < 1.15 knows no rng=
    ).pvalue
    value = sign_flip_test(differences)
    assert value == pytest.approx(expected, abs=0.02)
    assert value == sign_flip_test(differences)
    assert sign_flip_test(np.full(25, 1.0)) > 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p_values):
    p = np.array(p_values)
    corrected = holm(p)
    assert (corrected >= p - 1e-15).all()
    assert (corrected <= 1).all()
    assert (np.diff(corrected[np.argsort(p, kind="stable")]) >= 0).all()
    assert corrected.min() == pytest.approx(min(1, p.min() * len(p)))


def test_classes_that_cannot_decide_say_how_many_it_takes():
    """However large the differences: the smallest p-value of k classes is 2^(1-k)."""
    row = many_classes(2).compare("b", "a").iloc[0]
    assert (row["over"], row["n_classes"], row["p_value"], row["better"]) == ("classes", 2, 0.5, "")
    assert math.isnan(row["p_corrected"])
    assert row["reason"].startswith("a significant difference at level 0.05 requires at least 6 classes, got 2;")
    for test in ("permutation", "sign"):
        six = many_classes(6).compare("b", "a", test=test).iloc[0]
        assert (six["better"], six["reason"], six["p_corrected"]) == ("b", "", 2**-5)
        both = many_classes(6).compare("b", test=test)
        assert both["p_corrected"].isna().all()
        assert both["reason"].str.contains("among 2 comparisons requires at least 7 classes, got 6").all()


@given(st.lists(st.one_of(st.none(), st.integers(2, 14)), min_size=1, max_size=12), st.sampled_from([0.05, 0.01, 0.5]))
def test_what_can_decide_does_at_its_smallest_p_value(numbers, alpha):
    reasons = undecidable(numbers, alpha)
    least = np.array([0.0 if k is None else 2.0 ** (1 - k) for k in numbers])
    can = np.array([not reason for reason in reasons])
    corrected = holm(np.where(can, least, np.nan))
    assert (corrected[can] <= alpha).all()
    assert (holm(least)[~can] > alpha).all() or can.any()  # none is lost that could decide with all others
    for reason in filter(None, reasons):
        needed = int(re.search(r"at least (\d+)", reason)[1])
        place = reasons.index(reason)
        assert not undecidable([*numbers[:place], needed, *numbers[place + 1 :]], alpha)[place]
        assert 2.0 ** (2 - needed) * len(numbers) > alpha


def test_bad_comparisons_are_refused():
    results = Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=0)
    with pytest.raises(UnknownNameError, match="'goood' in these results; did you mean 'good'"):
        results.compare("good", "goood")
    with pytest.raises(InvalidArgumentError, match="detectors other than 'good', got good"):
        results.compare("good", "good")
    with pytest.raises(InvalidArgumentError, match=r"expected test to be .* got 't'"):
        results.compare("good", test="t")
    with pytest.raises(UnknownNameError, match="metric 'aurc' of OOD classes"):
        results.compare("good", metric="aurc")
    with pytest.raises(UnknownNameError, match="'fars'"):
        results.compare("good", dataset="fars")
    for name in ("far", "val"):
        with pytest.raises(InvalidArgumentError, match=f"'{name}' does not have two or more OOD classes with images"):
            results.compare("good", dataset=name)
    one_class = results.recompute(classes={"near": ["sky"]})
    with pytest.raises(InvalidArgumentError, match="no OOD set has two or more OOD classes"):
        one_class.compare("good")
    with pytest.raises(InvalidArgumentError, match="'near' does not have two or more OOD classes"):
        one_class.compare("good", dataset="near")
    frame = run_scores()
    frame = frame[(frame["dataset"] != "near") | (frame["group"] != 1)]
    with pytest.warns(UndefinedMetricWarning):
        less = Results.from_scores(frame, DATASETS, DETECTORS, bootstrap=0)
    assert set(less.compare("good")["n_classes"]) == {2}
    with pytest.warns(UndefinedMetricWarning):
        empty = Results.from_scores(frame[frame["dataset"] != "val"], DATASETS, DETECTORS, bootstrap=0)
    with pytest.raises(InvalidArgumentError, match=r"2 classes of 'near' have no fpr95 .*classes=\{'near': \["):
        empty.compare("good")
