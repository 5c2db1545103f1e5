"""Warnings about uncertain outputs: features of another layer, outputs that look like probabilities."""

import warnings

import pytest
import torch
import torch.nn.functional as f
from torch import nn

from oodlit import OODModule
from oodlit.base.fingerprint import difference
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_

IMAGES = arithmetic(12, 3, 8, 8).float()
FEATURES = "ignore:.*the features do not determine"
PROBABILITIES = "ignore:.*outputs look like"


class Gives(nn.Module):
    """Some function of the outputs of a linear layer."""

    def __init__(self, end, classes: int = 5) -> None:
        super().__init__()
        self.fc, self.end = nn.Linear(192, classes), end
        fill_arithmetic_(self)

    def forward(self, images):
        return self.end(self.fc(images.flatten(1) * 3))


class Gated(nn.Module):
    """A functional head behind a side layer, which is the last linear one."""

    def __init__(self, *, over_tokens: bool = False) -> None:
        super().__init__()
        self.proj, self.gate, self.over_tokens = nn.Linear(192, 16), nn.Linear(16, 4), over_tokens
        self.weight = nn.Parameter(torch.empty(5, 16))
        fill_arithmetic_(self)

    def forward(self, images):
        made = self.proj(images.flatten(1)).relu()
        gate = self.gate(made[:, None].expand(-1, 3, -1) if self.over_tokens else made)
        return f.linear(made * gate.flatten(1).mean(dim=1, keepdim=True).sigmoid(), self.weight)


@pytest.mark.filterwarnings(PROBABILITIES)
@pytest.mark.parametrize(
    ("network", "width", "layer"),
    [(Gated(), 16, "gate"), (Gated(over_tokens=True), 16, "gate"), (Gives(lambda y: y * y.abs()), 192, "fc")],
    ids=["gate", "tokens", "end"],
)
def test_features_that_do_not_determine_the_logits_are_warned_about_once(network, width, layer):
    module = OODModule(network)
    message = rf"the features do not determine the logits. The features are the {width} inputs of layer '{layer}'; "
    with pytest.warns(UserWarning, match=message):
        module.probe(IMAGES)
    module(IMAGES)  # once is enough: a second warning would be an error here


LOOK = {
    "sigmoid": lambda y: y.sigmoid(),
    "softmax in percent": lambda y: y.softmax(1) * 100,
    "negative softmax": lambda y: -y.softmax(1),
    "log_softmax and a factor": lambda y: y.log_softmax(1) * 3,
    "log_softmax and a small factor": lambda y: y.log_softmax(1) / 50,
    "negative log_softmax": lambda y: -y.log_softmax(1),
    "logarithm of softmax and a little": lambda y: (y.softmax(1) + 1e-3).log(),
    "log_softmax and an offset": lambda y: y.log_softmax(1) + 7,
}


@pytest.mark.filterwarnings(FEATURES)
@pytest.mark.parametrize("end", LOOK.values(), ids=LOOK)
def test_outputs_that_look_like_probabilities_are_warned_about(end):
    with pytest.warns(UserWarning, match=r"^Gives: the outputs look like (log-)?probabilities"):
        OODModule(Gives(end)).probe(IMAGES)


@pytest.mark.filterwarnings(FEATURES)
@pytest.mark.parametrize(
    "end",
    [
        lambda y: y * y.abs(),
        lambda y: (y - y.mean(dim=1, keepdim=True)) * y.abs().amax(dim=1, keepdim=True),
        lambda y: -(y.square()),
        lambda y: y.tanh() * 10,
        lambda y: y.relu() + y.amax(dim=1, keepdim=True),
        lambda y: torch.cos(y) * 1e-5 + torch.arange(5),
    ],
    ids=["signed squares", "centred", "negative distances", "bounded", "positive", "nearly equal rows"],
)
def test_logits_without_a_linear_layer_raise_no_false_alarm(end):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*look like")
        OODModule(Gives(end)).probe(IMAGES)


def test_outputs_of_a_linear_head_are_never_warned_about():
    network = TinyConvNet(6)
    with torch.no_grad():
        network.head.weight.mul_(1e-3)
        network.head.bias.fill_(0.5)
    OODModule(network).probe(IMAGES)


class Cycle(nn.Sequential):
    """Channels last after the first layer."""

    def forward(self, images):
        return self[1](self[0](images).permute(0, 2, 3, 1).mean(dim=(1, 2)))


def test_channel_axis_is_part_of_the_head_fingerprint():
    network = Cycle(nn.Conv2d(3, 8, 1), nn.Linear(8, 6))
    images = torch.rand(2, 3, 8, 8)
    modules = [OODModule(network, channel_axis=axes) for axes in ({"0": 1}, {"0": -1}, {"0": 1}, None)]
    for module in modules:
        module.probe(images)
    first, other, same, unsaid = (m.fingerprint for m in modules)
    assert difference(first, same) == ""
    assert difference(first, other) == difference(first, unsaid) == "the layer that the features come from"


@pytest.mark.filterwarnings(FEATURES)
def test_output_is_part_of_the_head_fingerprint():
    class Both(Gives):
        def forward(self, images):
            logits = self.fc(images.flatten(1))
            return logits, logits

    modules = [OODModule(Both(None), output=part) for part in (0, 1)]
    for module in modules:
        module.probe(IMAGES)
    assert difference(*(m.fingerprint for m in modules)) == "the layer that the features come from"


class OwnHeads(nn.Module):
    """Mean and log-variance, which it names as its classifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.logvar = nn.Linear(192, 5), nn.Linear(192, 5)
        fill_arithmetic_(self)

    def get_classifier(self):
        return self.mean, self.logvar

    def forward(self, images):
        return self.mean(images.flatten(1)), self.logvar(images.flatten(1))


def test_averaging_two_heads_of_a_custom_network_is_warned_about():
    with pytest.warns(UserWarning, match=r"OwnHeads: get_classifier\(\) returns 2 heads, 'mean' and 'logvar'"):
        OODModule(OwnHeads()).probe(IMAGES)


def test_distilled_timm_networks_are_averaged_silently():
    timm = pytest.importorskip("timm")
    network = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, num_classes=5)
    network.set_distilled_training(True)
    OODModule(network.eval()).probe(torch.rand(3, 3, 32, 32))
