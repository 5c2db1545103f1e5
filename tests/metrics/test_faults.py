"""Kinds of fault that users of comparable tools met; one test for each, named after it."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oodlit.metrics as m
from oodlit.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.outputs import Outputs
from tests.metrics import support as ref


def streamed(metric, id_scores, ood_scores):
    """Value of a streaming metric, ID first."""
    scores = torch.tensor([*id_scores, *ood_scores], dtype=torch.float64)
    metric.update(scores, is_ood=torch.arange(len(scores)) >= len(id_scores))
    return metric.compute().item()


@pytest.mark.parametrize(
    ("id_scores", "ood_scores"), [([23, 24, 25], [20, 21, 22]), ([-108, -107], [-110, -109]), ([1e30, 2e30], [0, 1])]
)
def test_no_hidden_transform_of_scores(id_scores, ood_scores):
    assert m.auroc(id_scores, ood_scores) == 1.0
    assert streamed(m.AUROC(), id_scores, ood_scores) == 1.0
    assert m.fpr_at_tpr(id_scores, ood_scores) == 0.0
    assert m.aupr_success(id_scores, ood_scores) == m.aupr_error(id_scores, ood_scores) == 1.0


def test_no_decision_is_taken_per_batch():
    metric = m.AUROC()
    metric.update(torch.tensor([0.9, 0.2]), is_ood=torch.tensor([True, True]))
    metric.update(torch.tensor([1.5, 2.0]), is_ood=torch.tensor([False, False]))
    assert metric.compute().item() == 1.0


RANKING = [m.AUROC, m.FPRAtTPR, m.AUPRSuccess, m.AUPRError, m.DetectionError]


@given(ref.score_lists(), ref.score_lists(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_partition_and_any_order_gives_the_same_value(id_scores, ood_scores, random, size):
    pairs = [(s, False) for s in id_scores] + [(s, True) for s in ood_scores]
    random.shuffle(pairs)
    for make in RANKING:
        metric = make()
        for start in range(0, len(pairs), size):
            batch = pairs[start : start + size]
            metric.update(torch.tensor([s for s, _ in batch]), is_ood=torch.tensor([o for _, o in batch]))
        assert metric.compute().item() == pytest.approx(streamed(make(), id_scores, ood_scores), abs=1e-12)


def test_one_sign_convention():
    id_scores, ood_scores = [0.9, 0.8, 0.7], [0.6, 0.75]
    assert m.auroc(id_scores, ood_scores) == pytest.approx(5 / 6)
    # A detector with reversed sign is shown as what it is, never repaired in silence.
    assert m.auroc([-s for s in id_scores], [-s for s in ood_scores]) == pytest.approx(1 / 6)
    assert m.auroc([-s for s in ood_scores], [-s for s in id_scores]) == pytest.approx(5 / 6)


def test_the_positive_class_of_an_asymmetric_metric_is_stated():
    id_scores = [*np.linspace(5, 6, 18), 0.0, 0.0]
    ood_scores = np.linspace(1, 2, 20)
    assert m.fpr_at_tpr(id_scores, ood_scores) == 1.0
    assert m.fpr_at_tpr(-ood_scores, -np.array(id_scores)) == pytest.approx(0.1)  # OOD in the place of ID
    for item in (m.fpr_at_tpr, m.auroc, m.aupr_success, m.aupr_error, m.FPRAtTPR, m.AUPRSuccess, m.AUPRError):
        assert "positive" in item.__doc__


def test_aupr_in_and_out_are_not_swapped():
    assert m.aupr_success([4, 3, 2, 1], [2.5, 0.5]) == pytest.approx(0.8875)
    assert m.aupr_error([4, 3, 2, 1], [2.5, 0.5]) == pytest.approx(0.75)


def test_a_group_of_equal_scores_is_accepted_as_a_whole():
    id_scores, ood_scores = [0.9] * 90 + [0.5] * 10, [0.5] * 40 + [0.1] * 60
    assert m.fpr_at_tpr(id_scores, ood_scores) == pytest.approx(0.4)
    assert m.fpr_at_tpr(id_scores[::-1], ood_scores[::-1]) == pytest.approx(0.4)


def test_all_scores_equal():
    id_scores, ood_scores = [1.0] * 5, [1.0] * 3
    assert m.auroc(id_scores, ood_scores) == 0.5
    assert m.fpr_at_tpr(id_scores, ood_scores) == 1.0
    assert m.detection_error(id_scores, ood_scores) == 0.5


def test_prevalence_is_visible():
    id_scores, ood_scores = [4, 3, 2, 1], [2.5] * 10 + [0.5] * 10
    assert m.auroc(id_scores, ood_scores) == 0.75
    assert m.aupr_success(id_scores, ood_scores) == pytest.approx(0.6291, abs=5e-5)
    assert m.aupr_error(id_scores, ood_scores) == pytest.approx(0.9545, abs=5e-5)
    metric = m.AUPRSuccess()
    streamed(metric, id_scores, ood_scores)
    assert (metric.n_id, metric.n_ood) == (4, 20)
    # With a fixed prior, the number of images does not matter.
    few = m.aupr_success(id_scores, [2.5, 0.5], prior=0.5)
    assert m.aupr_success(id_scores, ood_scores, prior=0.5) == pytest.approx(few, abs=1e-12)


def test_pooled_and_macro_average_have_their_own_names():
    metric = m.MeanOverClasses(m.FPRAtTPR(), num_classes=2)
    scores = torch.cat([torch.arange(1.0, 101.0), torch.full((10,), 50.0), torch.zeros(1000)])
    groups = torch.cat([torch.full((100,), -1), torch.zeros(10).long(), torch.ones(1000).long()])
    metric.update(scores, is_ood=groups >= 0, groups=groups)
    value = metric.compute()
    assert value["per_class"].tolist() == [1.0, 0.0]
    assert value["mean"].item() == 0.5
    assert value["pooled"].item() == pytest.approx(10 / 1010)


FUNCTIONS = [m.auroc, m.fpr_at_tpr, m.aupr_success, m.aupr_error, m.detection_error]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_nan_scores_are_an_error_with_their_count(function):
    with pytest.raises(NonFiniteScoreError, match=r"id_scores: 1 of 2 scores is NaN .*: 1\)"):
        function([0.9, math.nan], [0.1, 0.2])
    with pytest.raises(NonFiniteScoreError, match="ood_scores: 2 of 3 scores are NaN"):
        function([0.9], torch.tensor([math.nan, 0.1, math.nan], dtype=torch.bfloat16))


def test_nan_scores_are_an_error_in_a_stream_that_stays_usable():
    metric = m.AUROC()
    metric.update(torch.tensor([0.9, math.nan]), is_ood=torch.tensor([False, True]))
    for _ in range(2):
        with pytest.raises(NonFiniteScoreError, match="ood_scores: 1 of 1"):
            metric.compute()


def test_infinities_are_ordered():
    assert m.auroc([math.inf, 0.1], [math.inf, -math.inf]) == 0.625


@pytest.mark.parametrize("make", [*RANKING, m.OSCR, m.AURC, m.AUGRC, m.IDAUROC, m.Accuracy], ids=lambda c: c.__name__)
def test_no_sample_is_undefined(make):
    metric = make()
    with pytest.warns(m.UndefinedMetricWarning, match="there is no|there is neither|no labeled") as caught:
        value = metric.compute()
    assert math.isnan(value)
    assert len(caught) == 1


@pytest.mark.parametrize("make", RANKING, ids=lambda c: c.__name__)
def test_an_undefined_result_is_not_a_number(make):
    metric = make()
    metric.update(torch.tensor([1.0, 2.0]), is_ood=torch.tensor([False, False]))
    with pytest.warns(m.UndefinedMetricWarning, match="there is no OOD score") as caught:
        value = metric.compute()
    assert math.isnan(value)
    assert len(caught) == 1
    with warnings.catch_warnings():  # single batches of one class are fine
        warnings.simplefilter("error")
        metric.update(torch.tensor([0.0]), is_ood=torch.tensor([True]))
        assert not math.isnan(metric.compute())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (partial(m.id_auroc, [1.0, 2.0], [True, True]), "no prediction is wrong"),
        (partial(m.id_auroc, [1.0], [False]), "no prediction is correct"),
        (partial(m.aurc, [], []), "no image"),
        (partial(m.augrc, [], []), "no image"),
        (partial(m.accuracy, [], []), "no labeled image"),
        (partial(m.acceptance_threshold, []), "no ID score"),
        (partial(m.detection_error_rate, [], [], threshold=0.0), "no image"),
        (partial(m.detection_error_rate, [1.0], [True], threshold=math.nan), "threshold is NaN"),
        (partial(m.oscr, [], [1.0], is_correct=[]), "no ID score"),
        (partial(m.auroc, [], []), "neither an ID nor an OOD"),
        (partial(m.unit_test_failures, [], [[1.0], [2.0]]), "there is no ID score$"),
        (partial(m.unit_test_failures, [1.0], [[1.0], []]), r"no score for 1 of 2 tests \(first indices: 1\)"),
        (partial(m.unit_test_failures, [1.0], []), "no test"),
        (partial(m.mean_over_classes, [1.0], []), "no class"),
    ],
)
def test_undefined_values_give_their_reason(function, reason):
    with pytest.warns(m.UndefinedMetricWarning, match=reason):
        assert math.isnan(function())


def test_an_empty_class_is_not_left_out_of_a_mean():
    with pytest.warns(m.UndefinedMetricWarning) as caught:
        assert math.isnan(m.mean_over_classes([1.0], [[0.0], []]))
    assert any("no value for 1 of 2 classes (first indices: 1)" in str(w.message) for w in caught)


def test_the_denominator_is_the_number_of_ood_images():
    id_scores, ood_scores = [3, 4, 5, 6], [1, 2, 3]
    assert m.fpr_at_tpr(id_scores, ood_scores) == 1 / 3
    assert m.fpr_at_tpr(id_scores * 7, ood_scores) == 1 / 3


def test_the_quantile_is_not_interpolated_between_scores():
    id_scores, ood_scores = range(1, 11), [1.2, 0.5, 0.4, 0.3]
    assert m.acceptance_threshold(id_scores) == 1.0
    assert m.fpr_at_tpr(id_scores, ood_scores) == 0.25
    assert m.acceptance_threshold(id_scores, rule="interpolated") == pytest.approx(1.45)  # named where it is asked for


def test_ood_samples_change_no_threshold():
    id_scores = torch.arange(20.0)
    metric = m.FPRAtTPR()
    metric.update(id_scores, is_ood=torch.zeros(20, dtype=torch.bool))
    metric.update(torch.tensor([0.5, 1.0]), is_ood=torch.tensor([True, True]))
    assert metric.compute().item() == 0.5
    metric.update(torch.full((998,), 100.0), is_ood=torch.ones(998, dtype=torch.bool))
    assert metric.compute().item() == 999 / 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_do_not_collide_in_half_precision(dtype):
    # Scores that only float32 tells apart are ranked as float32; logits are upcast before a score exists.
    id_scores, ood_scores = torch.tensor([11.003, 11.006, 11.009]), torch.tensor([11.000, 11.001, 11.002])
    assert m.auroc(id_scores, ood_scores) == 1.0
    logits = torch.tensor([[30.0, 0, 0], [40.0, 0, 0]], dtype=dtype)
    assert Outputs(logits).log_probabilities.dtype == torch.float32
    # What did collide is a tie, in every dtype the same.
    low = m.auroc(id_scores.to(dtype), ood_scores.to(dtype))
    assert low == m.auroc(id_scores.to(dtype).double(), ood_scores.to(dtype).double())


def test_detection_error_is_the_minimum_over_all_attainable_thresholds():
    assert m.detection_error([3, 4, 5, 6], [1, 2, 3]) == 0.125
    assert m.detection_error([0.0], [1.0]) == 0.5  # reversed: accept everything, or nothing


@pytest.mark.parametrize("tpr", [0, -0.1, 1.0001, math.nan, math.inf, 95])
def test_a_tpr_outside_its_range_is_refused(tpr):
    for call in (partial(m.fpr_at_tpr, [1.0], [1.0]), partial(m.acceptance_threshold, [1.0]), m.FPRAtTPR):
        with pytest.raises(InvalidArgumentError, match=r"expected tpr to be in \(0, 1\]"):
            call(tpr=tpr)


def test_other_bad_arguments_are_refused():
    with pytest.raises(InvalidArgumentError, match="rule to be 'attained' or 'interpolated', got 'linear'"):
        m.fpr_at_tpr([1.0], [1.0], rule="linear")
    with pytest.raises(InvalidArgumentError, match=r"prior.*1\.5"):
        m.aupr_success([1.0], [1.0], prior=1.5)
    with pytest.raises(InvalidArgumentError, match=r"id_scores: .*shape \(1, 2\)"):
        m.auroc(np.array([[1.0, 2.0]]), [1.0])
    with pytest.raises(InvalidArgumentError, match="expected numbers"):
        m.auroc(np.array(["a"]), [1.0])
    with pytest.raises(InvalidArgumentError, match=r"is_correct: .*shape"):
        m.aurc([1.0, 2.0], [True])
    with pytest.raises(InvalidArgumentError, match="is_correct: expected booleans"):
        m.aurc([1.0], np.array([1]))
    with pytest.raises((InvalidArgumentError, TypeError), match=r"is_correct: expected booleans, got list|Type-check"):
        m.aurc([1.0], ["a"])
    with pytest.raises((InvalidArgumentError, TypeError), match=r"expected integers, got list of dtype <U1|Type-check"):
        m.accuracy(["a"], [0])
    with pytest.raises(InvalidArgumentError, match="1 of 2 images has no label"):
        m.accuracy([0, 1], [0, -1])
    with pytest.raises(InvalidArgumentError, match="expected one label per prediction"):
        m.accuracy([0, 1], [0])
    with pytest.raises(InvalidArgumentError, match="expected limit"):
        m.unit_test_failures([1.0], [[1.0]], limit=10)
    metric = m.AUROC()
    with pytest.raises(InvalidArgumentError, match=r"is_ood: .*torch\.int64"):
        metric.update(torch.ones(2), is_ood=torch.tensor([0, 1]))
    with pytest.raises(InvalidArgumentError, match=r"scores: .*shape"):
        metric.update(torch.ones(2, 1), is_ood=torch.tensor([True, False]))
    grouped = m.UnitTestFailures(2)
    with pytest.raises(InvalidArgumentError, match="groups: expected values from 0 to 1, got 0 to 2"):
        grouped.update(torch.ones(2), is_ood=torch.tensor([True, True]), groups=torch.tensor([0, 2]))
    for make in (partial(m.UnitTestFailures, 0), partial(m.MeanOverClasses, m.AUROC(), 0)):
        with pytest.raises(InvalidArgumentError, match=">= 1"):
            make()


def test_a_unit_test_fails_only_above_the_limit():
    id_scores = range(100)  # threshold 5
    exactly, above = [9.0] * 10 + [0.0] * 90, [9.0] * 11 + [0.0] * 89
    assert m.unit_test_failures(id_scores, [exactly]) == 0
    assert m.unit_test_failures(id_scores, [exactly, above]) == 1
    metric = m.UnitTestFailures(2)
    scores = torch.tensor([*map(float, id_scores), *exactly, *above])
    groups = torch.tensor([-1] * 100 + [0] * 100 + [1] * 100)
    metric.update(scores, is_ood=groups >= 0, groups=groups)
    assert metric.compute().item() == 1


def test_merged_states_equal_one_stream_also_after_compute():
    first, second, whole = m.AUROC(), m.AUROC(), m.AUROC()
    parts = [torch.tensor([0.1, 0.9, 0.4]), torch.tensor([0.5, 0.2])]
    flags = [torch.tensor([True, False, False]), torch.tensor([True, False])]
    for metric, scores, is_ood in ((first, parts[0], flags[0]), (second, parts[1], flags[1])):
        metric.update(scores, is_ood=is_ood)
        whole.update(scores, is_ood=is_ood)
        metric.compute()
    first.merge_state(second)
    assert first.compute() == whole.compute()
    first.merge_state(m.AUROC())
    first.merge_state({"id_scores": [], "ood_scores": torch.empty(0)})
    assert first.compute() == whole.compute()
    with pytest.raises(InvalidArgumentError, match="AUROC: only a metric of this type can be merged, got FPRAtTPR"):
        first.merge_state(m.FPRAtTPR())
    with pytest.raises(InvalidArgumentError, match=r"AUROC: missing states ood_scores"):
        first.merge_state({"id_scores": []})
    first.reset()
    first.update(torch.tensor([1.0, 0.0]), is_ood=torch.tensor([False, True]))
    assert first.compute().item() == 1.0


def test_merged_counts():
    first, second = m.Accuracy(), m.Accuracy()
    first.update(torch.tensor([0, 1]), labels=torch.tensor([0, 0]))
    second.update(torch.tensor([0, 1]), labels=torch.tensor([0, 1]))
    first.merge_state(second)
    assert first.compute().item() == 0.75
    assert second.compute().item() == 1.0


def test_forward_gives_the_value_of_the_batch():
    metric = m.AUROC()
    assert metric(torch.tensor([1.0, 0.0]), is_ood=torch.tensor([False, True])).item() == 1.0
    assert metric(torch.tensor([0.0, 1.0]), is_ood=torch.tensor([False, True])).item() == 0.0
    assert metric.compute().item() == 0.5
