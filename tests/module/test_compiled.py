"""Networks that were compiled, exported or quantised."""

import copy
import warnings

import pytest
import torch
from torch import nn

from oodlit import OODModule
from oodlit.base.fingerprint import difference
from oodlit.detectors import KNN, MSP, Energy, ViM
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.testing.backbones import arithmetic, fill_arithmetic_

IMAGES = arithmetic(2, 3, 8, 8).float()


def plain() -> nn.Module:
    return fill_arithmetic_(nn.Sequential(nn.Conv2d(3, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4)))


def exported() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(plain(), (IMAGES,), dynamic_shapes=({0: batch},))


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao moves to another package
        return torch.ao.quantization.quantize_dynamic(plain(), {nn.Linear}, dtype=torch.qint8)


def scripted() -> nn.Module:
    return torch.jit.script(plain())


def frozen() -> nn.Module:
    return torch.jit.freeze(torch.jit.script(plain()))


OPAQUE = {
    "script": scripted,
    "trace": lambda: torch.jit.trace(plain(), IMAGES),
    "frozen": frozen,
    "exported": lambda: exported().module(),
}


@pytest.mark.parametrize("make", OPAQUE.values(), ids=OPAQUE)
@torch.no_grad()
def test_networks_that_hide_their_layers_return_logits(make):
    """Logits are enough for detectors such as MSP."""
    module = OODModule(make())
    module.eval()
    module.train()  # as Lightning does
    facts = module.probe(IMAGES)
    assert (facts.num_classes, facts.width) == (4, 0)
    assert "cannot be inspected" in facts.head_problem
    assert (MSP().why_not(facts), Energy().why_not(facts)) == ("", "")
    assert "needs the linear head" in ViM().why_not(facts)
    assert "needs features" in KNN().why_not(facts)
    torch.testing.assert_close(module(IMAGES).logits, plain()(IMAGES))
    assert module(IMAGES).features is None
    torch.testing.assert_close(module.logits(IMAGES), plain()(IMAGES))
    assert difference(module.fingerprint, OODModule(make()).fingerprint) == ""
    with pytest.raises(RequirementError, match="cannot be inspected"):
        _ = module.head
    with pytest.raises(InvalidArgumentError, match="cannot be inspected; omit head"):
        OODModule(make(), head="3")
    assert "cannot be inspected" in module.probe(IMAGES, layers=("0",)).layer_problems["0"]


def test_exported_programs_with_a_fixed_batch_size_are_reported():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(plain(), (IMAGES,))
    module = OODModule(program.module())
    module.probe(IMAGES)
    with pytest.raises(InvalidArgumentError, match="failed on 1 image of shape"):
        module.probe(IMAGES[:1])


def test_scripted_backbone_without_classifier():
    module = OODModule(torch.jit.trace(plain()[:3], IMAGES), features_only=True)
    facts = module.probe(IMAGES)
    assert (facts.width, facts.num_classes) == (200, 0)


@pytest.mark.filterwarnings("ignore:.*The features are the 200 inputs")  # rounded weights are not linear
@torch.no_grad()
def test_quantized_networks():
    module = OODModule(quantised())
    facts = module.probe(IMAGES)
    assert (facts.num_classes, facts.width) == (4, 200)
    assert MSP().why_not(facts) == ""
    assert difference(module.fingerprint, OODModule(quantised()).fingerprint) == ""
    other = plain()
    other[3].weight.mul_(1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = torch.ao.quantization.quantize_dynamic(other, {nn.Linear}, dtype=torch.qint8)
    assert difference(module.fingerprint, OODModule(other).fingerprint) == "the state of the weights"


@pytest.mark.parametrize(
    "compile_", [lambda n: torch.compile(n, backend="eager"), lambda n: n.compile(backend="eager")]
)
@torch.no_grad()
def test_compiled_networks_return_features(compile_):
    network, eager = plain(), OODModule(plain())
    module = OODModule(compile_(network) or network)
    facts = module.probe(IMAGES, layers=("0",))
    assert (facts.width, facts.head_problem, facts.channels) == (200, "", {"0": 8})
    assert difference(module.fingerprint, eager.fingerprint) == ""
    for size in (2, 3, 5):
        images = arithmetic(size, 3, 8, 8).float()
        assert torch.equal(module(images).features, eager(images).features)
    eager(IMAGES)
    assert module.head_layers[0].removeprefix("_orig_mod.") == eager.head_layers[0]


def test_a_module_can_be_copied():
    module = OODModule(plain())
    module.probe(IMAGES)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.network[3].weight.zero_()
    assert not twin.head.weight.any()
    assert module.head.weight.any()
    assert difference(twin.fingerprint, module.fingerprint)
