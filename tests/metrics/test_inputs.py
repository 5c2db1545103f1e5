"""What comes in is read exactly or refused with a message: numbers, containers, settings."""

import math
import re
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torchmetrics

import oodlit.metrics as m
from oodlit.errors import InvalidArgumentError
from oodlit.metrics.aupr import exact_prior
from oodlit.metrics.detection_error_rate import _check_threshold
from oodlit.metrics.numerics.ranking import as_count, as_flags, as_integers, as_numbers, as_scores, exact_share
from oodlit.metrics.streams import StreamMetric
from oodlit.metrics.uncertainty.intervals import check_confidence

IS_OOD = torch.tensor([False, False, True, True])
SCORES = torch.tensor([3.0, 4.0, 1.0, 2.0])


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, partial(np.array, dtype=np.uint64)])
def test_integers_that_float64_rounds_are_refused_not_tied(make):
    with pytest.raises(InvalidArgumentError, match=r"id_scores: .*below 2\*\*53, got one of about 9007199254740992"):
        m.auroc(make([2**53 + 1]), [2**53])
    with pytest.raises(InvalidArgumentError, match=r"below 2\*\*53"):
        m.AUROC().update(torch.tensor([2**60 + 1, 2**60]), is_ood=torch.tensor([False, True]))
    assert m.auroc(make([2**53 - 1]), make([2**53 - 2])) == 1.0


def test_the_smallest_and_largest_numbers_keep_their_order():
    assert m.auroc(np.array([4e-45], dtype=np.float32), np.array([1e-45], dtype=np.float32)) == 1.0
    assert m.auroc([5e-324], [0.0]) == 1.0
    assert m.auroc(torch.tensor([math.inf], dtype=torch.half), torch.tensor([65504.0], dtype=torch.half)) == 1.0
    for function, value in ((m.auroc, 0.5), (m.fpr_at_tpr, 1.0), (m.detection_error, 0.5), (m.aupr_success, 0.5)):
        assert function([0.0], [-0.0]) == function([-0.0], [0.0]) == value, function  # equal numbers: a tie


def test_what_holds_no_dense_numbers_is_refused():
    masked = np.ma.masked_array([1.0, 9.0], mask=[False, True])
    with pytest.raises(InvalidArgumentError, match="masked entries are not supported"):
        m.auroc(masked, [5.0])
    assert m.auroc(np.ma.masked_array([1.0, 9.0]), [5.0]) == 0.5
    for tensor in (torch.ones(2, device="meta"), torch.ones(2).to_sparse()):
        with pytest.raises(InvalidArgumentError, match="expected a dense tensor with values"):
            as_scores(tensor)
    with pytest.raises(InvalidArgumentError, match=r"scores: expected real numbers, got torch\.complex64"):
        m.AUROC().update(torch.ones(4, dtype=torch.complex64), is_ood=IS_OOD)
    with pytest.raises(InvalidArgumentError, match=r"shape \(\)"):
        m.auroc(np.array(1.0), [1.0])


def test_pandas_columns_are_read_by_position():
    id_scores = pd.Series([3.0, 4.0], index=["b", "a"])
    for dtype in ("float64", "Float64", "float32"):
        assert m.auroc(id_scores.astype(dtype), pd.Series([1.0, 2.0], index=[7, 7])) == 1.0
    assert m.accuracy(pd.Series([1, 2], index=[5, 5]), np.array([1, 1], dtype=np.uint8)) == 0.5
    correct = pd.Series([True, False], index=["x", "y"])
    assert m.aurc(id_scores, correct) == m.aurc([3.0, 4.0], [True, False])


def test_flags_must_fit_also_where_there_is_no_score():
    with pytest.raises(InvalidArgumentError, match=r"is_correct: .*\(0\), got shape \(1,\)"):
        m.aurc([], [True])
    assert as_flags([], "is_correct", like=torch.zeros(0)).dtype == torch.bool


@pytest.mark.parametrize("values", ["a", ["a"], 1, [[1]], [1.0], [True], torch.tensor(1), pd.Series([1, None])])
def test_classes_must_be_integers(values):
    with pytest.raises(InvalidArgumentError, match="labels: "):
        as_integers(values, "labels")


def test_batches_may_be_any_container():
    expected = m.auroc(SCORES[:2], SCORES[2:])
    for make in (np.asarray, torch.Tensor.tolist, lambda x: pd.Series(x.numpy(), index=[3, 3, 1, 0])):
        scores, flags = as_numbers(make(SCORES)), make(IS_OOD)
        metric = m.AUROC()
        metric.update(scores, is_ood=as_flags(flags, "is_ood", like=scores))
        assert metric.compute() == expected
    half = m.AUROC()
    half.update(SCORES.half().requires_grad_(), is_ood=IS_OOD)
    assert half.compute() == expected
    assert half.stream("id_scores").dtype == torch.float64


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"groups: .*\(4\), got shape \(3,\)"),
        (torch.tensor([-1, -1, 0.7, 1.0]), r"groups: .*torch\.float32"),
        (torch.zeros(4, 1, dtype=torch.int64), r"groups: .*shape \(4, 1\)"),
        (IS_OOD, r"groups: .*torch\.bool"),
    ],
)
def test_groups_are_one_integer_per_score(groups, message):
    with pytest.raises((InvalidArgumentError, TypeError), match=f"{message}|Type-check"):
        m.UnitTestFailures(2).update(SCORES, is_ood=IS_OOD, groups=groups)


def test_shares_are_read_as_written():
    assert exact_share(np.float32(0.07)) == exact_share(np.float16(0.07)) == exact_share(0.07) == Fraction(7, 100)
    assert exact_share(5e-324) > 0
    for bad in (None, [0.95], torch.tensor([0.95, 0.9]), math.nan, math.inf, 0, 1.0000001):
        with pytest.raises(InvalidArgumentError, match=r"expected tpr to be in \(0, 1\]"):
            exact_share(bad)
    for bad in (0, 1, -1, math.nan, True):
        with pytest.raises(InvalidArgumentError, match=r"expected prior to be in \(0, 1\)"):
            exact_prior(bad)
    assert exact_prior(None) is None
    for bad, hint in ((95, "; did you mean 0.95?"), (1.01, ""), (500, "")):  # 95 is a percentage
        with pytest.raises(InvalidArgumentError, match=re.escape(f"got {bad}{hint}") + "$"):
            exact_share(bad)
    assert exact_share(0, below_one=True, allow_zero=True) == 0


@pytest.mark.parametrize("prior", [5e-324, 1e-300, 0.5, 1 - 2**-53])
def test_any_prior_gives_a_number(prior):
    for function in (m.aupr_success, m.aupr_error):
        assert 0 <= function([1.0, 2.0], [1.5], prior=prior) <= 1


def test_settings_of_a_wrong_kind_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"threshold to be a number.* got 'a'"):
        _check_threshold("a")
    with pytest.raises(InvalidArgumentError, match=r"num_tests to be an integer >= 1, got 2\.5"):
        as_count(2.5, "num_tests")
    for bad in (0, 1, 95, "x", None):
        with pytest.raises(InvalidArgumentError, match=r"expected confidence to be in \(0, 1\)"):
            check_confidence(bad)
    with pytest.raises((InvalidArgumentError, TypeError), match=r"such as FPRAtTPR|Type-check"):
        m.MeanOverClasses(m.UnitTestFailures(2), 2)
    low, high = m.wilson_interval(3, 31, confidence=1 - 2**-53)
    assert 0 < low < 3 / 31 < high < 1


KINDS = {
    "auroc": m.AUROC,
    "fpr": m.FPRAtTPR,
    "aupr": partial(m.AUPRSuccess, prior=0.5),
    "error": m.DetectionError,
    "oscr": m.OSCR,
    "aurc": m.AURC,
    "failed": partial(m.UnitTestFailures, 2),
    "mean": lambda: m.MeanOverClasses(m.AUROC(), 2),
}


def test_collections_share_states_and_change_no_value():
    batches = [
        {"is_ood": IS_OOD, "is_correct": ~IS_OOD, "groups": torch.tensor([-1, -1, 0, 1])},
        {"is_ood": ~IS_OOD, "is_correct": IS_OOD, "groups": torch.tensor([1, 0, -1, -1])},
    ]
    values = []
    for shared in (True, False):
        collection = torchmetrics.MetricCollection({k: make() for k, make in KINDS.items()}, compute_groups=shared)
        with pytest.warns(m.UndefinedMetricWarning):
            collection.compute()  # before the first image
        for batch in batches:
            collection.update(SCORES, **batch)
            last = collection.compute()  # updates go on after a value was taken
        copy = collection.clone()
        collection.reset()
        assert {k: v.tolist() for k, v in copy.compute().items()} == {k: v.tolist() for k, v in last.items()}
        values.append({k: v.tolist() for k, v in last.items()})
    assert values[0] == values[1]
    assert values[0]["auroc"] == m.auroc([3, 4, 1, 2], [1, 2, 3, 4])


def test_arguments_may_be_positional_as_in_torchmetrics():
    """torchmetrics passes arguments by position."""
    groups, is_correct = torch.tensor([-1, -1, 0, 1]), torch.tensor([True, False, False, False])
    calls = {
        m.AUROC(): (IS_OOD,),
        m.FPRAtTPR(0.95): (IS_OOD,),
        m.FPRAtTPR(0.9, "interpolated"): (IS_OOD,),
        m.FPRAtTPRError(0.95): (IS_OOD,),
        m.AUPRSuccess(0.5): (IS_OOD,),
        m.AUPRError(0.5): (IS_OOD,),
        m.DetectionError(): (IS_OOD,),
        m.OSCR(): (IS_OOD, is_correct),
        m.JointAUGRC(0.1): (IS_OOD, is_correct),
        m.JointRisk(0.1, 0.95): (IS_OOD, is_correct),
        m.JointCoverage(0.1, 0.95): (IS_OOD, is_correct),
        m.AURC(): (is_correct,),
        m.AUGRC(): (is_correct,),
        m.IDAUROC(): (is_correct,),
        m.DetectionErrorRate(0.5): (is_correct,),
        m.UnitTestFailures(2, 0.1, 0.95, "attained"): (IS_OOD, groups),
        m.MeanOverClasses(m.AUROC(), 2): (IS_OOD, groups),
    }
    assert {type(metric) for metric in calls} | {m.Accuracy, m.SeverityLevels} == {
        kind for name in m.__all__ if isinstance(kind := getattr(m, name), type) and issubclass(kind, StreamMetric)
    }
    for metric, flags in calls.items():
        metric.update(SCORES, *flags)
        assert torch.is_tensor(metric.compute()) or metric.compute()["mean"] >= 0
    accuracy = m.Accuracy()
    accuracy.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert accuracy.compute() == 0.5
    severity = m.SeverityLevels(2, 1, 2, 0.95, "attained")
    for is_test in (IS_OOD, ~IS_OOD):  # every image of the pool once for its severity, once as a test image
        severity.update(SCORES, IS_OOD, groups, is_test, SCORES.exp())
    assert severity.compute()["auroc"].tolist() == [1.0, 1.0]
    assert m.FPRAtTPR(0.9)(SCORES, IS_OOD) == m.FPRAtTPR(tpr=0.9)(SCORES, is_ood=IS_OOD)  # `forward` too
    both = torchmetrics.MetricCollection([m.AUROC(), m.FPRAtTPR(0.95)])
    both.update(SCORES, IS_OOD)
    assert set(both.compute()) == {"AUROC", "FPRAtTPR"}


def test_class_indices_are_refused_as_flags():
    with pytest.raises((InvalidArgumentError, TypeError), match=r"expected booleans|Type-check"):
        m.AUROC().update(SCORES, torch.tensor([0, 1, 1, 0]))
