"""ODIN and MC-dropout, which make extra forward passes, against naive loops over the formulas of their papers."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from oodlit.detectors import ODIN, MCDropout
from oodlit.detectors.passes.mc_dropout import _uniform
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import Outputs

from .networks import Conv, PlainModel
from .support import normal


def odin_outputs(std: float = 0.25, network: nn.Module | None = None) -> tuple[Outputs, PlainModel]:
    model = PlainModel(network or Conv(), torch.full((3,), std))
    images = normal(5, 3, 6, 6)
    with torch.no_grad():
        logits = model.network(images)
    return Outputs(logits, images=images, model=model), model


@pytest.mark.parametrize("std", [0.25, 0.5])
def test_odin(std: float) -> None:
    """The step is scaled by the std of the model in use, not by constants of another preprocessing."""
    outputs, model = odin_outputs(std)
    expected = []
    for image in outputs.require("images"):
        x = image[None].clone().requires_grad_()
        logits = model.network(x) / 10.0
        (-torch.log_softmax(logits, 1)[0, logits[0].argmax()]).backward()
        moved = image[None] - 0.05 / std * x.grad.sign()
        expected.append(torch.log_softmax(model.network(moved).double() / 10.0, 1).max().item())
    scores = ODIN(temperature=10.0, epsilon=0.05).score(outputs)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert model.passes == ODIN().extra_passes == 2


def test_odin_as_the_program_behind_the_cood_results() -> None:
    """Softmax probabilities stand where the cross-entropy expects logits; T and the std of the model are left out."""
    outputs, model = odin_outputs(0.5)
    expected = []
    for image in outputs.require("images"):
        x = image[None].clone().requires_grad_()
        p = torch.softmax(model.network(x), 1)[0]
        (p.exp().sum().log() - p.max()).backward()
        moved = x.detach().clone()
        for channel, std in enumerate((0.229, 0.224, 0.225)):
            signs = torch.tensor([[1.0 if g >= 0 else -1.0 for g in row] for row in x.grad[0, channel]])
            moved[0, channel] -= 0.05 / std * signs
        expected.append((torch.softmax(model.network(moved).double() / 2, 1).max()).log().item())
    scores = ODIN.preset("cood-program", epsilon=0.05).score(outputs)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    other = ODIN(temperature=2.0, epsilon=0.05).score(outputs)
    assert (scores - other).abs().max() > 1e-3
    assert model.passes == 4  # two each


def test_zero_gradient_counts_as_positive_in_the_cood_step() -> None:
    class Constant(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.stack([images.sum(dim=(1, 2, 3)) * 0, images.sum(dim=(1, 2, 3)).detach()], dim=1)

    images = torch.ones(1, 3, 2, 2)
    model = PlainModel(Constant(), torch.ones(3))
    outputs = Outputs(model.network(images), images=images, model=model)
    moved = sum(4 * (1 - 0.01 / std) for std in (0.229, 0.224, 0.225))
    score = ODIN(temperature=1.0, epsilon=0.01, step="cood").score(outputs)
    assert score.item() == pytest.approx(-np.log1p(np.exp(-moved)), rel=1e-4)


def test_cood_step_needs_three_channels() -> None:
    images = normal(2, 1, 6, 6)
    model = PlainModel(Conv(channels=1), torch.ones(1))
    with torch.no_grad():
        outputs = Outputs(model.network(images), images=images, model=model)
    with pytest.raises(InvalidArgumentError, match="requires images with 3 channels, got 1"):
        ODIN.preset("cood-program").score(outputs)


def test_odin_works_in_inference_mode() -> None:
    outputs, _ = odin_outputs()
    expected = ODIN(temperature=2.0, epsilon=0.1).score(outputs)
    network = Conv()
    with torch.inference_mode():
        inside, _ = odin_outputs(network=network)
        scores = ODIN(temperature=2.0, epsilon=0.1).score(inside)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert (scores - ODIN(temperature=2.0, epsilon=0.0).score(outputs)).abs().max() > 1e-3


def test_odin_without_step_needs_no_pass() -> None:
    outputs, model = odin_outputs()
    scores = ODIN(temperature=1.0, epsilon=0.0).score(outputs)
    np.testing.assert_allclose(scores, outputs.require("logits").log_softmax(1).amax(1), rtol=1e-5)
    assert model.passes == ODIN(epsilon=0.0).extra_passes == 0


@pytest.mark.parametrize("measure", ["entropy", "max"])
def test_mc_dropout_converges_to_the_mean_over_masks(measure: str) -> None:
    """One dropout of p = 1/2 on two features before the head: four masks, all equally likely."""

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(2, 2, bias=False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(images.mean(dim=(2, 3))))

    network = Tiny().eval()
    weight = torch.tensor([[1.0, 2.0], [-1.0, 0.5]])
    with torch.no_grad():
        network.head.weight.copy_(weight)
    images = torch.tensor([1.0, 0.5]).view(1, 2, 1, 1)
    masks = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]) * 2
    p = (masks * images.flatten() @ weight.T).softmax(dim=1).mean(dim=0)
    expected = p.max() if measure == "max" else (p * p.log()).sum()
    outputs = Outputs(torch.zeros(1, 2), images=images, model=PlainModel(network, torch.ones(2)))
    score = MCDropout(passes=1000, measure=measure).score(outputs)
    assert float(score) == pytest.approx(float(expected), abs=0.02)


def test_mc_dropout_masks_follow_the_image() -> None:
    """An image has the same score in any batch, order and repetition; batch-norm stays in eval mode."""
    drops = (nn.Dropout(0.3), nn.Dropout2d(0.5), nn.Dropout(0.0))
    model = PlainModel(Conv(dropout=drops), torch.ones(3))
    images = normal(6, 3, 5, 5)
    outputs = Outputs(torch.zeros(6, 4), images=images, model=model)
    detector = MCDropout(passes=5)
    whole = detector.score(outputs)
    assert model.passes == detector.extra_passes == 5
    order = torch.tensor([3, 1, 5])
    np.testing.assert_allclose(detector.score(outputs.select(order)), whole[order], rtol=1e-5)
    assert not torch.equal(MCDropout(passes=5, seed=1).score(outputs), whole)
    assert not any(m.training for m in model.network.modules())
    assert not any(m._forward_hooks for m in model.network.modules())
    plain = model.network(images)
    np.testing.assert_allclose(plain.detach(), model.logits(images).detach())


def test_mc_dropout_without_dropout_is_refused() -> None:
    from oodlit.detectors import BackboneFacts

    assert MCDropout().why_not(BackboneFacts(name="conv")) == "needs nn.Dropout with p > 0; conv has none"
    outputs = Outputs(torch.zeros(2, 4), images=normal(2, 3, 5, 5), model=PlainModel(Conv(), torch.ones(3)))
    with pytest.raises(RequirementError, match="the network has none"):
        MCDropout().score(outputs)


def test_uniform_numbers_are_uniform() -> None:
    values = _uniform(torch.arange(100) * 7, 1000)
    assert stats.kstest(values.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(float(torch.corrcoef(values[:2])[0, 1])) < 0.1
    assert 0 <= float(values.min()) <= float(values.max()) < 1
