"""Every metric against a slow, readable reference, and the properties that its definition implies."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from oodlit import metrics as F
from tests.metrics import support as ref

TPRS = st.sampled_from([0.05, 0.07, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0])
NEAR = {"rel": 1e-12, "abs": 1e-12}


def rounded(scores, dtype):
    """The tensor, and its values as Python floats."""
    tensor = torch.tensor(scores, dtype=dtype)
    return tensor, tensor.double().tolist()


@given(ref.score_lists(), ref.score_lists(), TPRS, st.sampled_from(ref.DTYPES))
def test_fpr_and_threshold(id_scores, ood_scores, tpr, dtype):
    id_tensor, id_values = rounded(id_scores, dtype)
    ood_tensor, ood_values = rounded(ood_scores, dtype)
    assert F.acceptance_threshold(id_tensor, tpr=tpr) == ref.reference_threshold(id_values, tpr)
    assert F.fpr_at_tpr(id_tensor, ood_tensor, tpr=tpr) == float(ref.reference_fpr(id_values, ood_values, tpr))


@given(ref.score_lists(), ref.score_lists(), st.sampled_from(ref.DTYPES))
def test_auroc(id_scores, ood_scores, dtype):
    id_tensor, id_values = rounded(id_scores, dtype)
    ood_tensor, ood_values = rounded(ood_scores, dtype)
    assert F.auroc(id_tensor, ood_tensor) == float(ref.reference_auroc(id_values, ood_values))


@given(ref.score_lists(), ref.score_lists(), st.sampled_from([None, 0.1, 0.5, 0.9]), st.sampled_from(ref.DTYPES))
def test_aupr(id_scores, ood_scores, prior, dtype):
    id_tensor, id_values = rounded(id_scores, dtype)
    ood_tensor, ood_values = rounded(ood_scores, dtype)
    success = ref.reference_average_precision(id_values, ood_values, prior)
    assert F.aupr_success(id_tensor, ood_tensor, prior=prior) == pytest.approx(float(success), **NEAR)
    negated_id, negated_ood = [-s for s in id_values], [-s for s in ood_values]
    error = ref.reference_average_precision(negated_ood, negated_id, None if prior is None else round(1 - prior, 3))
    assert F.aupr_error(id_tensor, ood_tensor, prior=prior) == pytest.approx(float(error), **NEAR)


@given(ref.score_lists(), ref.score_lists(), st.sampled_from(ref.DTYPES))
def test_detection_error(id_scores, ood_scores, dtype):
    id_tensor, id_values = rounded(id_scores, dtype)
    ood_tensor, ood_values = rounded(ood_scores, dtype)
    expected = ref.reference_detection_error(id_values, ood_values)
    assert F.detection_error(id_tensor, ood_tensor) == float(expected)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, math.inf]), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_orders_of_ties(pairs):
    scores, correct = [s for s, _ in pairs], [c for _, c in pairs]
    assert F.aurc(scores, correct) == pytest.approx(float(ref.reference_aurc(scores, correct)), **NEAR)


@given(ref.score_lists(), st.data())
def test_augrc_is_exact_and_equals_its_closed_form(scores, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    value = F.augrc(scores, correct)
    assert value == float(ref.reference_augrc(scores, correct))
    accuracy = sum(correct) / len(correct)
    if 0 < accuracy < 1:
        closed = accuracy * (1 - accuracy) * (1 - F.id_auroc(scores, correct)) + (1 - accuracy) ** 2 / 2
        assert value == pytest.approx(closed, **NEAR)


@given(ref.score_lists(), ref.score_lists(), st.data())
def test_oscr(id_scores, ood_scores, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(id_scores), max_size=len(id_scores)))
    value = F.oscr(id_scores, ood_scores, is_correct=correct)
    assert value == float(ref.reference_oscr(id_scores, correct, ood_scores))
    assert value <= sum(correct) / len(correct)


@given(ref.score_lists(), st.data(), ref.score_lists(min_size=1, max_size=1))
def test_detection_error_rate(scores, data, threshold):
    correct = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    wrong = sum((s >= threshold[0]) != c for s, c in zip(scores, correct, strict=True))
    assert F.detection_error_rate(scores, correct, threshold=threshold[0]) == wrong / len(scores)


@given(ref.score_lists(), ref.score_lists(), TPRS)
def test_threshold_keeps_what_it_promises(id_scores, ood_scores, tpr):
    threshold = F.acceptance_threshold(id_scores, tpr=tpr)
    assert Fraction(sum(s >= threshold for s in id_scores), len(id_scores)) >= Fraction(str(tpr))
    assert threshold in id_scores


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=20),
    st.lists(st.integers(-50, 50), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_order_of_samples_and_increasing_maps_change_nothing(id_scores, ood_scores, random):
    mapped_id = [math.atan(s) * 1e-3 - 7 for s in id_scores]
    mapped_ood = [math.atan(s) * 1e-3 - 7 for s in ood_scores]
    random.shuffle(mapped_id)
    random.shuffle(mapped_ood)
    for metric in (F.auroc, F.fpr_at_tpr, F.aupr_success, F.aupr_error, F.detection_error):
        assert metric(id_scores, ood_scores) == pytest.approx(metric(mapped_id, mapped_ood), **NEAR)


@given(ref.score_lists(), ref.score_lists())
def test_exchanging_the_groups(id_scores, ood_scores):
    negated_id, negated_ood = [-s for s in id_scores], [-s for s in ood_scores]
    assert F.auroc(negated_ood, negated_id) == F.auroc(id_scores, ood_scores)
    assert F.auroc(negated_id, negated_ood) == pytest.approx(1 - F.auroc(id_scores, ood_scores), **NEAR)
    assert F.detection_error(negated_ood, negated_id) == F.detection_error(id_scores, ood_scores)
    assert F.aupr_success(negated_ood, negated_id) == pytest.approx(F.aupr_error(id_scores, ood_scores), **NEAR)


@given(ref.score_lists(), ref.score_lists())
def test_a_prior_of_the_true_share_is_no_prior(id_scores, ood_scores):
    share = Fraction(len(id_scores), len(id_scores) + len(ood_scores))
    for metric in (F.aupr_success, F.aupr_error):
        assert metric(id_scores, ood_scores, prior=share) == pytest.approx(metric(id_scores, ood_scores), **NEAR)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=60),
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=60),
)
def test_against_scikit_learn(id_scores, ood_scores):
    scores = np.array([*id_scores, *ood_scores])
    is_id = np.arange(len(scores)) < len(id_scores)
    assert F.auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(is_id, scores), **NEAR)
    assert F.aupr_success(id_scores, ood_scores) == pytest.approx(average_precision_score(is_id, scores), **NEAR)
    assert F.aupr_error(id_scores, ood_scores) == pytest.approx(average_precision_score(~is_id, -scores), **NEAR)


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=60), st.integers(1, 100))
def test_interpolated_threshold_is_the_linear_quantile(id_scores, percent):
    expected = np.quantile(np.array(id_scores), 1 - percent / 100)
    threshold = F.acceptance_threshold(id_scores, tpr=percent / 100, rule="interpolated")
    assert threshold == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("scores", "tpr", "expected"),
    [
        ([-math.inf, 0.0], 0.5, -math.inf),
        ([0.0, math.inf], 0.5, math.inf),
        ([math.inf, math.inf], 0.5, math.inf),
        ([-math.inf, math.inf], 1.0, -math.inf),
        ([5.0], 0.95, 5.0),
    ],
)
def test_interpolated_threshold_orders_infinities(scores, tpr, expected):
    assert F.acceptance_threshold(scores, tpr=tpr, rule="interpolated") == expected


@pytest.mark.parametrize(("n", "tpr"), [(50_000, 0.95), (100, 0.07), (1000, 0.29), (7, 0.95), (20, 0.95), (21, 0.95)])
def test_number_kept_is_decided_in_integers(n, tpr):
    needed = Fraction(str(tpr)) * n
    kept = n - F.acceptance_threshold(range(n), tpr=tpr)  # scores 0 .. n-1: the threshold is n - k
    assert kept - 1 < needed <= kept


def test_any_container_gives_the_same():
    id_scores, ood_scores = [3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0]
    expected = F.auroc(id_scores, ood_scores)
    for make in (np.array, torch.tensor, pd.Series, tuple, lambda x: np.array(x)[::-1], lambda x: np.array(x, ">f4")):
        assert F.auroc(make(id_scores), make(ood_scores)) == expected
    assert F.auroc(torch.tensor([3, 4, 5, 6]), torch.tensor([1, 2, 3])) == expected
    assert F.auroc(torch.tensor(id_scores, requires_grad=True), torch.tensor(ood_scores)) == expected
    assert F.auroc(torch.tensor(id_scores), torch.tensor(ood_scores, dtype=torch.float64)) == expected


def test_inputs_are_not_changed():
    id_scores, ood_scores = torch.tensor([3.0, 1.0, 2.0]), np.array([5.0, 4.0])
    F.fpr_at_tpr(id_scores, ood_scores)
    assert id_scores.tolist() == [3.0, 1.0, 2.0]
    assert ood_scores.tolist() == [5.0, 4.0]
