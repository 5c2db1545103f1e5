"""Half and double precision: the probe casts as the run does, and a second run of a module works."""

import pytest
import torch
from pytorch_lightning.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from torch import nn

from oodlit import OODModule
from oodlit.base.fingerprint import difference
from oodlit.errors import InvalidArgumentError
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_

IMAGES = arithmetic(2, 3, 8, 8).float()
PRECISIONS = [HalfPrecision("bf16-true"), HalfPrecision("16-true"), DoublePrecision()]


def plain() -> nn.Module:
    return fill_arithmetic_(nn.Sequential(nn.Conv2d(3, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_runs_with_converted_weights(precision):
    """Lightning converts the weights in place; the second run of a module sees converted weights."""
    module = OODModule(plain())
    first = module.probe(IMAGES, precision=precision)
    before = module.fingerprint
    precision.convert_module(module)  # as Lightning does after the probe, in place
    second = module.probe(IMAGES, precision=precision)
    assert (first.width, first.head_problem) == (second.width, second.head_problem) == (200, "")
    assert difference(before, module.fingerprint) == ""
    with torch.no_grad():
        module.network[3].weight.mul_(1.5)
    assert difference(before, module.fingerprint) == "the state of the weights"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_networks_in_half_precision(dtype):
    name = {torch.bfloat16: "bf16-true", torch.float16: "16-true"}[dtype]
    module = OODModule(plain().to(dtype))
    facts = module.probe(IMAGES, precision=HalfPrecision(name))
    assert (facts.width, facts.head_problem) == (200, "")
    assert torch.get_default_dtype() == torch.float32


def test_mixed_precision_accepts_half_precision_weights():
    module = OODModule(plain().bfloat16())
    assert module.probe(IMAGES, precision=MixedPrecision("bf16-mixed", "cpu")).head_problem == ""


def test_half_precision_weights_without_matching_precision_are_refused():
    module = OODModule(plain().bfloat16())
    for precision in (None, Precision()):
        with pytest.raises(
            InvalidArgumentError, match=r"weights in torch.bfloat16\).* In a Trainer, pass precision='bf16-true'"
        ):
            module.probe(IMAGES, precision=precision)


def test_the_head_is_verified_in_half_precision():
    module = OODModule(TinyConvNet(6).bfloat16())
    with torch.no_grad():
        made = module(IMAGES.bfloat16())
    assert (made.logits.dtype, made.features.dtype) == (torch.float32, torch.float32)
    assert module.head_problem == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scaled_network_in_half_precision_is_another_network(dtype):
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.network, self.scale = plain(), scale

        def forward(self, images):
            return self.network[3](self.network[:3](images) * self.scale)

    prints = []
    for scale in (20.0, 20.0, 26.0):
        module = OODModule(Scaled(scale).to(dtype))
        module.probe(IMAGES, precision=HalfPrecision("bf16-true" if dtype == torch.bfloat16 else "16-true"))
        prints.append(module.fingerprint)
    assert difference(*prints[:2]) == ""
    assert difference(*prints[1:]) == "the output of the network for built-in test pictures"
