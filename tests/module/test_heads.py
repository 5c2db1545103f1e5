"""The head is the whole head: adapters, wrappers, masked classes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from oodlit import OODModule
from oodlit.detectors import Energy, ViM
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_
from tests.networks import TinyDistilledNet

IMAGES = arithmetic(4, 3, 8, 8).float()
WIDTH = TinyConvNet.num_features


class Adapter(nn.Module):
    """A low-rank adapter: base(x) + B(A(x))."""

    def __init__(self, base: nn.Linear, *, rank: int = 2, between: nn.Module | None = None) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        self.between = nn.Identity() if between is None else between
        fill_arithmetic_(self.lora_A)
        fill_arithmetic_(self.lora_B)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.between(self.lora_A["default"](x)))


class OneParameter(nn.Module):
    """A custom linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.matrix, self.offset = nn.Parameter(base.weight.detach().clone()), nn.Parameter(base.bias.detach().clone())

    def forward(self, x):
        return x @ self.matrix.T + self.offset


class LoraLinear(nn.Linear):
    """A linear layer that adds to the product with its weight."""

    def forward(self, x):
        return super().forward(x) + x[:, :1] * arithmetic(self.out_features).float()


def lora_linear(base: nn.Linear) -> nn.Module:
    layer = LoraLinear(base.in_features, base.out_features)
    layer.load_state_dict(base.state_dict())
    return layer


def hooked(base: nn.Linear) -> nn.Module:
    base.register_forward_hook(lambda _m, args, output: output + args[0][:, 1:2])
    return base


def normed(base: nn.Linear) -> nn.Module:
    norm = nn.BatchNorm1d(base.in_features)
    norm.running_mean = arithmetic(base.in_features).float()
    return nn.Sequential(norm, nn.Dropout(0.5), Adapter(base))


HEADS = {
    "adapter": Adapter,
    "adapter in a sequence": lambda base: nn.Sequential(nn.Dropout(0.2), Adapter(base)),
    "adapter behind a normalisation": normed,
    "adapter of an adapter": lambda base: Adapter(Adapter(base)),
    "two layers scaled": lambda base: nn.Sequential(base, nn.Dropout(0.1)),
    "a custom layer": OneParameter,
    "subclass": lora_linear,
    "hook": hooked,
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
}
Adapter.in_features = property(lambda self: self.base_layer.in_features)
Adapter.out_features = property(lambda self: self.base_layer.out_features)


def with_head(make) -> TinyConvNet:
    network = copy.deepcopy(TinyConvNet(6))
    network.head = make(network.head)
    return network.eval()


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("named", [True, False])
@torch.no_grad()
def test_features_are_the_input_of_the_whole_head(make, named):
    """Features are not the two numbers in the middle of an adapter."""
    network = with_head(make)
    module = OODModule(network, head="head" if named else None)
    facts = module.probe(IMAGES)
    assert (facts.head_problem, facts.width) == ("", WIDTH)
    made = module(IMAGES)
    assert torch.equal(OODModule(network, head="head" if named else None)(IMAGES).features, made.features)
    assert made.features.shape == (4, WIDTH)
    torch.testing.assert_close(module.head(made.features), made.logits)
    torch.testing.assert_close(made.logits, network(IMAGES))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_a_nonlinear_adapter_has_features_but_no_head():
    module = OODModule(with_head(lambda base: Adapter(base, between=nn.ReLU())))
    facts = module.probe(IMAGES)
    assert facts.width == WIDTH
    assert "'head' returns the logits, but is not linear" in facts.head_problem
    assert "not linear" in ViM().why_not(facts)
    assert Energy().why_not(facts) == ""


@torch.no_grad()
def test_an_untrained_adapter_adds_nothing():
    network = with_head(Adapter)
    network.head.lora_B["default"].weight.zero_()
    module = OODModule(network)
    made = module(IMAGES)
    torch.testing.assert_close(made.features, OODModule(TinyConvNet(6))(IMAGES).features)
    assert module.head_problem == ""


@torch.no_grad()
def test_the_head_uses_the_current_weights():
    network = with_head(Adapter)
    module = OODModule(network)
    module(IMAGES)
    network.head.base_layer.bias.add_(1.0)
    torch.testing.assert_close(module.head(module(IMAGES).features), network(IMAGES))


class SumOfTwo(nn.Module):
    """Two layers with separate inputs add up to the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(192, 5), nn.Linear(96, 5)
        fill_arithmetic_(self)

    def forward(self, images):
        x = images.flatten(1)
        return self.a(x) + self.b(x[:, :96])


def test_logits_of_two_layers_are_warned_about_with_width_and_layer():
    with pytest.warns(UserWarning, match="the 192 inputs of layer 'a'.* Other layers with one output per logit: b"):
        facts = OODModule(SumOfTwo()).probe(IMAGES)
    assert "not a linear function of the input of layer 'a'" in facts.head_problem


class AdapterInTheNetwork(nn.Module):
    """The adapter has no separate module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lora_a, self.lora_b = nn.Linear(192, 5), nn.Linear(192, 2), nn.Linear(2, 5)
        fill_arithmetic_(self)

    def forward(self, images):
        x = images.flatten(1)
        return self.fc(x) + self.lora_b(self.lora_a(x))


def test_an_adapter_without_its_own_module_is_warned_about_and_its_middle_is_not_used():
    with pytest.warns(
        UserWarning, match="the 192 inputs of layer 'fc'.* Other layers with one output per logit: lora_b"
    ):
        assert OODModule(AdapterInTheNetwork()).probe(IMAGES).width == 192


def test_features_come_from_the_last_of_several_equal_layers():
    with pytest.warns(
        UserWarning, match="the 16 inputs of layer 'head_dist'.* Other layers with one output per logit: head"
    ):
        assert OODModule(TinyDistilledNet(6)).probe(IMAGES).width == 16


@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_a_hidden_layer_with_as_many_outputs_is_not_part_of_the_head():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh())
    facts = OODModule(fill_arithmetic_(network)).probe(IMAGES)  # a warning would be an error
    assert facts.width == 6
    assert "input of layer '3'" in facts.head_problem


class Masks(TinyConvNet):
    """Masks classes after the head."""

    def __init__(self, mask) -> None:
        super().__init__(6)
        self.mask = mask

    def forward(self, images):
        return self.mask(super().forward(images))


def _fill(value):
    def mask(y):
        y = y.clone()
        y[:, [1, 4]] = value
        return y

    return mask


@pytest.mark.parametrize("value", [-float("inf"), -1e9, torch.finfo(torch.float32).min])
@torch.no_grad()
def test_masked_classes_keep_the_head(value):
    """A bias of minus infinity, or classes masked after the head."""
    in_bias = TinyConvNet(6)
    in_bias.head.bias[[1, 4]] = value
    for network in (in_bias, Masks(_fill(value)), Masks(lambda y: y + torch.tensor([0, value, 0, 0, value, 0]))):
        module = OODModule(network)
        assert module.probe(IMAGES).head_problem == "", network
        made = module(IMAGES)
        assert torch.equal(made.features, OODModule(TinyConvNet(6))(IMAGES).features)
        torch.testing.assert_close(module.head(made.features), made.logits)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
@pytest.mark.filterwarnings("ignore:.*outputs look like")
def test_a_mask_does_not_hide_differences_of_other_classes():
    def mask(y):
        return _fill(-1e9)(y.tanh())

    assert "not a linear function" in OODModule(Masks(mask)).probe(IMAGES).head_problem


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_a_mask_that_differs_by_image_is_not_a_head():
    def mask(y):
        y = y.clone()
        y[0, 2] = -float("inf")
        return y

    assert "largest difference: inf" in OODModule(Masks(mask)).probe(IMAGES).head_problem


class Tempered(TinyConvNet):
    """Something behind the head."""

    def __init__(self, end) -> None:
        super().__init__(6)
        self.end = end

    def forward(self, images):
        return self.end(super().forward(images))


@torch.no_grad()
@pytest.mark.parametrize("end", [lambda y: y / 0.07, lambda y: y * 1e-3, lambda y: y.to(torch.float64) * 30])
def test_a_positive_scale_behind_the_head_belongs_to_it(end):
    module = OODModule(Tempered(end))
    assert module.probe(IMAGES).head_problem == ""
    made = module(IMAGES)
    torch.testing.assert_close(module.head(made.features).to(made.logits.dtype), made.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(made.features, OODModule(TinyConvNet(6))(IMAGES).features)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*(the features do not determine|outputs look like)")
@pytest.mark.parametrize(
    "end",
    [
        lambda y: -y,
        lambda y: y * 3 + 1,
        lambda y: y / y.norm(dim=1, keepdim=True),
        lambda y: y * torch.arange(1, 7),
        lambda y: y * (1 + 0.05 * y),
    ],
    ids=["negative", "shift", "by image", "by class", "curved"],
)
def test_another_step_behind_the_head_is_none_of_it(end):
    assert "not a linear function" in OODModule(Tempered(end)).probe(IMAGES).head_problem


class BentDistilled(TinyDistilledNet):
    """The mean of two heads, which is then bent."""

    def get_classifier(self):
        return self.head, self.head_dist

    def forward(self, images):
        return super().forward(images) ** 3


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*(the features do not determine|outputs look like)")
def test_each_of_several_layers_is_quoted():
    problem = OODModule(BentDistilled(6)).probe(IMAGES).head_problem
    assert "of the input of layers 'head' and 'head_dist' (largest" in problem
