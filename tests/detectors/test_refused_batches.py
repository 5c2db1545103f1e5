"""What statistics refuse, and that a refused batch leaves no trace."""

import numpy as np
import pytest
import torch

from oodlit.detectors.statistics import ClassCovariances, FeatureBank, Statistics
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import Outputs

from .statistics_support import KINDS, assert_same, facts_of, made, train
from .support import normal


@pytest.mark.parametrize("kind", ["ClassMoments", "CorrectMeans", "ClassVariances"])
def test_missing_labels_name_the_first_keys(kind: str) -> None:
    outputs = Outputs(normal(3, 2), normal(3, 2), torch.tensor([0, -1, -1]), keys=["t/a", "t/b", "t/c"])
    with pytest.raises(InvalidArgumentError, match=r"2 of 3 training images have no label \(first: t/b, t/c\)"):
        KINDS[kind]().update(outputs)
    with pytest.raises(InvalidArgumentError, match=r"have no label \(first rows: 1, 2\)"):
        KINDS[kind]().update(Outputs(outputs.logits, outputs.features, outputs.labels))


@pytest.mark.parametrize("kind", ["ClassMoments", "FeatureMean", "FeatureBank"])
def test_changed_width_is_an_error(kind: str) -> None:
    statistic = made(kind, train(30), 30)
    with pytest.raises(
        InvalidArgumentError, match=r"features per image as in earlier batches|of earlier batches, .*, got"
    ):
        statistic.update(train(30, width=7))


@pytest.mark.parametrize("kind", ["ClassMoments", "FeatureMean", "FeatureBank", "CorrectMeans", "ClassVariances"])
@pytest.mark.parametrize("width", [1, 7])
def test_parts_of_another_width_are_not_merged(kind: str, width: int) -> None:
    """A width of 1 would be broadcast in silence."""
    statistic, before = made(kind, train(30), 30), facts_of(made(kind, train(30), 30))
    with pytest.raises(InvalidArgumentError, match="cannot merge statistics of shapes"):
        statistic.merge(made(kind, train(30, width=width), 30))
    assert_same(facts_of(statistic), before)


@pytest.mark.parametrize("ordered", [True, False])
def test_banks_with_and_without_order_are_not_merged(ordered: bool) -> None:
    """Rows without a hash would be sorted by whatever the memory held."""
    bank, other = FeatureBank(ordered=ordered), FeatureBank(ordered=not ordered)
    bank.update(train(9))
    other.update(train(9))
    with pytest.raises(InvalidArgumentError, match=r"FeatureBank\(\): cannot merge statistics of shapes .*hash"):
        bank.merge(other)
    assert bank.num_samples == 9


@pytest.mark.parametrize("fault", ["no label", "label 99", "NaN logit", "infinite feature"])
@pytest.mark.parametrize("at", [3, 4999])
def test_a_refused_batch_leaves_no_trace(fault: str, at: int) -> None:
    """Also not in the statistics that could have taken it, or of the rows before the one that is refused."""

    def statistics() -> Statistics:
        return Statistics([KINDS[kind]() for kind in KINDS if kind != "HiddenSample"])

    bad = train(5000, sd=1.0)
    if fault.endswith(("label", "99")):
        bad.require("labels")[at] = -1 if fault == "no label" else 99
    else:
        bad.require("logits" if fault == "NaN logit" else "features")[at, 1] = np.nan if "NaN" in fault else np.inf
    found, expected = statistics(), statistics()
    for part in (slice(0, 30), slice(30, 60)):
        found.update(train(60).select(part))
        expected.update(train(60).select(part))
        with pytest.raises(
            InvalidArgumentError, match=r"no label|got label 99|NaN in logits|infinite values in features"
        ):
            found.update(bad)
    for kind, statistic in expected.items():
        assert_same(facts_of(found[kind]), facts_of(statistic))


def test_full_covariances_refuse_with_the_number() -> None:
    statistic = ClassCovariances(max_bytes=1000)
    with pytest.raises(RequirementError, match=r"6 covariances of 5 features require 0\.0 GiB, above the limit"):
        statistic.update(train())


@pytest.mark.parametrize("kind", ["ClassMoments", "ClassCovariances", "ClassVariances"])
def test_labels_that_are_no_indices(kind: str) -> None:
    """WordNet offsets as labels would take 26 GB for every 768 features."""
    statistic = KINDS[kind]()
    with pytest.raises(InvalidArgumentError, match="got 1440764"):
        statistic.update(Outputs(features=torch.ones(2, 3), labels=torch.tensor([0, 1_440_764])))
    assert statistic.num_samples == 0
