"""Thresholds from a run: what they keep, what they let pass, and how far they can be from the truth."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from oodlit import Results, Role
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.gate.threshold import quantile_interval, threshold_of
from oodlit.results import DatasetInfo

scores = st.lists(st.integers(0, 30).map(float), min_size=3, max_size=40)


def results_of(inside: list[float], near: list[float] | None = None, far: list[float] | None = None) -> Results:
    given = {"val": inside, "near": near, "far": far}
    sets = {name: values for name, values in given.items() if values is not None}
    frame = pd.concat(
        pd.DataFrame({
            "key": [f"{name}/{i}" for i in range(len(values))],
            "dataset": name,
            "group": -1 if name == "val" else 0,
            "label": -1,
            "prediction": 0,
            "mine": values,
        })
        for name, values in sets.items()
    )  # fmt: skip
    infos = [
        DatasetInfo(name, Role.ID if name == "val" else Role.OOD, () if name == "val" else ("a",)) for name in sets
    ]
    return Results.from_scores(frame, infos, ["mine"], bootstrap=0)


@given(scores, scores, st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_tpr_is_kept_and_decisions_are_those_of_the_run(inside: list[float], near: list[float], tpr: float) -> None:
    results = results_of(inside, near)
    found = threshold_of(results, "mine", tpr=tpr)
    everything = np.array(inside + near)
    assert ((everything >= found.cut) == (everything >= found.value)).all()
    assert np.mean(np.array(inside) >= found.value) >= tpr
    assert found.num_id_refused == sum(score < found.value for score in inside)
    assert (found.num_images, found.num_id, found.dataset, found.kind) == (len(inside), len(inside), "val", "tpr")
    assert found.value == results.recompute(tpr=tpr).threshold("mine")
    assert found.ci_low <= found.value <= found.ci_high


@given(scores, scores, st.sampled_from([0.0, 0.05, 0.3, 0.9]))
def test_fpr_is_not_exceeded_and_the_next_threshold_would(inside: list[float], near: list[float], fpr: float) -> None:
    results = results_of(inside, near)
    allowed = [t for t in inside + near if np.mean(np.array(near) >= t) <= fpr]
    if not allowed:
        with pytest.raises(InvalidArgumentError, match=r"images? of 'near' ha(s|ve) a score that no ID image exceeds"):
            threshold_of(results, "mine", fpr=fpr)
        return
    found = threshold_of(results, "mine", fpr=fpr)
    assert found.value == min(allowed)
    everything = np.array(inside + near)
    assert ((everything >= found.cut) == (everything >= found.value)).all()
    assert (found.num_images, found.num_id, found.dataset, found.kind) == (len(near), len(inside), "near", "fpr")


def test_scores_that_rounding_moves_count_as_equal() -> None:
    found = threshold_of(results_of([float(i) for i in range(1000)], [49.0, 49.9999]), "mine")
    assert found.value == 50.0
    assert found.cut == pytest.approx(49.99995)
    assert threshold_of(results_of([float(i) for i in range(1000)], [3.0]), "mine").cut == pytest.approx(49.5)
    assert threshold_of(results_of([5.0] * 9, [1.0]), "mine").cut == 5.0


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("number", [5, 60, 400])
def test_interval_covers_the_quantile(number: int, share: float) -> None:
    """Second source: the chance that order statistics enclose the quantile of a uniform distribution, summed up."""
    low, high = quantile_interval(np.arange(number, dtype=np.float64), share)
    first = 0 if math.isinf(low) else int(low) + 1  # so many scores must lie below the quantile
    last = number if math.isinf(high) else int(high)
    chance = sum(binom.pmf(k, number, share) for k in range(first, last + 1))
    assert chance >= 0.95
    assert sum(binom.pmf(k, number, share) for k in range(first)) <= 0.025
    assert sum(binom.pmf(k, number, share) for k in range(last + 1, number + 1)) <= 0.025


def test_what_has_to_be_said() -> None:
    results = results_of([1.0, 2.0, 3.0], [0.0, 1.0], [5.0])
    with pytest.raises(InvalidArgumentError, match=r"requires the name of a set of OOD images; .*dataset=.* near, far"):
        threshold_of(results, "mine", fpr=0.1)
    with pytest.raises(UnknownNameError, match="did you mean 'near'"):
        threshold_of(results, "mine", fpr=0.1, dataset="nearr")
    with pytest.raises(InvalidArgumentError, match="expected tpr or fpr"):
        threshold_of(results, "mine", fpr=0.1, tpr=0.9)
    with pytest.raises(InvalidArgumentError, match="requires fpr"):
        threshold_of(results, "mine", dataset="near")
    for fpr, found in ((1, "1"), (95, r"95; did you mean 0\.95"), (-0.1, "-0.1"), (False, "False")):
        with pytest.raises(InvalidArgumentError, match=rf"fpr to be in \[0, 1\), got {found}"):
            threshold_of(results, "mine", fpr=fpr, dataset="near")
    with pytest.raises(InvalidArgumentError, match=r"requires OOD images, .* pass tpr="):
        threshold_of(results_of([1.0, 2.0, 3.0]), "mine", fpr=0.1)
    with pytest.raises(UnknownNameError, match="in these results"):
        threshold_of(results, "yours")
    text = str(threshold_of(results, "mine", fpr=0, dataset="near"))
    assert text.endswith("accepts at most 0 % of the 2 images of near and refuses 1 of 3 ID images")
