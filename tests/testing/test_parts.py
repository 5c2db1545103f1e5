"""Problems, tiny backbones and strategies."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.detectors import detectors
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Model
from oodlit.testing import backbones, checks, separated_problem, signed_problem, strategies
from oodlit.testing.problems import cut, join
from tests import networks
from tests.detectors.support import NEGATIVE_WORDS

SETTINGS = dict.fromkeys(("neg_label", "csp"), NEGATIVE_WORDS)
IMAGES = backbones.arithmetic(4, 3, 8, 8).float()
NETWORKS = {
    "plain": backbones.TinyConvNet,
    "dropout": lambda: backbones.TinyConvNet(dropout=0.5),
    "signed": lambda: backbones.TinyConvNet(signed=True),
    "no_bias": lambda: backbones.TinyConvNet(bias=False, head_name="classifier"),
    "headless": networks.TinyHeadlessNet,
    "convolutional": networks.TinyConvolutionalClassifier,
    "distilled": networks.TinyDistilledNet,
    "hidden_head": networks.TinyHiddenHeadNet,
}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_backbones_are_fixed_and_in_eval_mode(build):
    first, second = build(), build()
    assert not any(m.training for m in first.modules())
    assert torch.equal(first(IMAGES), second(IMAGES))
    assert first(IMAGES).shape[0] == 4
    assert first(IMAGES).std() > 0


def test_arithmetic_numbers_look_uniform():
    values = backbones.arithmetic(100_000)
    assert values.min() >= 0
    assert values.max() < 1
    histogram = torch.histc(values, bins=10, min=0, max=1)
    assert (histogram - 10_000).abs().max() < 500
    assert abs(float(torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1])) < 0.02
    assert not torch.equal(backbones.arithmetic(9, salt=1), backbones.arithmetic(9, salt=2))


@pytest.mark.parametrize("build", [separated_problem, signed_problem])
def test_problem_is_what_it_says(build):
    problem = build()
    for outputs in (problem.train, problem.id, problem.ood):
        assert torch.allclose(problem.head(outputs.features), outputs.logits, atol=1e-4)
        assert torch.allclose(problem.model.logits(outputs.images), outputs.logits, atol=1e-4)
        again = problem.model.logits_from_map(outputs.hidden["feature_map"])
        assert torch.allclose(again, outputs.logits, atol=1e-4)
    assert isinstance(problem.model, Model)
    assert 0.9 < (problem.train.predictions == problem.train.labels).float().mean() < 1
    assert (problem.id.predictions == problem.id.labels).all()
    assert (problem.ood.labels == -1).all()
    keys = [*problem.train.keys, *problem.id.keys, *problem.ood.keys]
    assert len(set(keys)) == len(keys)
    assert bool((problem.train.features < 0).any()) is problem.facts.signed_features
    assert problem.tests_are_id.tolist() == [key.startswith("id/") for key in problem.tests.keys]


def test_problems_share_nothing():
    first, second = separated_problem(), separated_problem()
    first.train.features.zero_()
    first.model.network.conv.weight.data.zero_()
    assert second.train.features.abs().sum() > 0
    assert separated_problem().model.network.conv.weight.abs().sum() > 0


def test_every_detector_applies_or_says_why_on_signed_features():
    problem = signed_problem()
    refused = {key for key, kind in detectors().items() if kind(**SETTINGS.get(key, {})).why_not(problem.facts)}
    assert refused == {"ash", "scale"}


@pytest.mark.parametrize("key", sorted(set(detectors()) - {"ash", "scale", "open_max"}))
def test_detectors_hold_on_signed_features(key):
    for name in ("check_higher_is_id", "check_finite_on_extremes", "check_needs_are_enough"):
        checks()[name](partial(detectors()[key], **SETTINGS.get(key, {})), signed_problem)


@given(strategies.cuts(12))
def test_cuts_hold_every_image_once(order_and_sizes):
    order, sizes = order_and_sizes
    assert sorted(order) == list(range(12))
    assert sum(sizes) == 12
    assert min(sizes) >= 1
    problem_id = separated_problem().id.select(slice(0, 12))
    batches = list(cut(problem_id, sizes, order))
    assert join(batches).keys == [problem_id.keys[i] for i in order]


@given(strategies.heads(min_classes=3, max_classes=4, max_features=2, bias=False))
def test_heads_keep_their_bounds(head):
    assert 3 <= head.num_classes <= 4
    assert 1 <= head.width <= 2
    assert not head.offset.any()


@given(strategies.outputs(min_images=2, max_images=3, num_classes=3, num_features=2, labeled=True))
def test_outputs_keep_their_bounds(outputs):
    assert 2 <= len(outputs) <= 3
    assert outputs.logits.shape[1] == 3
    assert outputs.features.shape[1] == 2
    assert outputs.labels.max() < 3


@given(st.data())
def test_outputs_follow_a_head(data):
    head = data.draw(strategies.heads())
    outputs = data.draw(strategies.outputs(head=head))
    assert torch.equal(outputs.logits, head(outputs.features))


def test_outputs_take_a_head_or_numbers():
    with pytest.raises(InvalidArgumentError, match="head sets num_classes and num_features; omit head"):
        strategies.outputs(head=Head(torch.eye(2)), num_classes=3)


@given(strategies.training_sets(num_classes=4, min_per_class=2, max_per_class=3))
def test_training_sets_have_every_class(train):
    counts = torch.bincount(train.labels, minlength=4)
    assert counts.min() >= 2
    assert counts.max() <= 3


@given(strategies.training_sets(num_classes=4, gaps=True))
def test_training_sets_with_gaps_are_not_empty(train):
    assert len(train) > 0


@given(strategies.extreme_values(magnitude=100.0, signed=False))
def test_extreme_values_keep_their_bounds(value):
    assert 0 <= value <= 100


@given(strategies.rotations(4))
def test_rotations_are_orthogonal(matrix):
    assert torch.allclose(matrix @ matrix.T, torch.eye(4, dtype=torch.float64), atol=1e-9)
