"""What networks return beside plain logits: several outputs, dictionaries, probabilities."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from oodlit import OODModule
from oodlit.errors import InvalidArgumentError
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_
from tests.networks import TinyDistilledNet, TinyHiddenHeadNet

IMAGES = arithmetic(4, 3, 8, 8).float()


class Gives(nn.Module):
    """One linear layer; `give` decides what comes out, of logits and features."""

    def __init__(self, give) -> None:
        super().__init__()
        self.fc, self.give = nn.Linear(192, 4), give
        fill_arithmetic_(self)

    def forward(self, images):
        features = images.flatten(1)
        return self.give(self.fc(features), features)


@dataclass
class ModelOutput:
    logits: torch.Tensor
    pooled: torch.Tensor


class AttributeDict(OrderedDict):
    """As Hugging Face's: a mapping whose entries are attributes, too."""

    def __getattr__(self, name):
        return self[name]


PLAIN = OODModule(Gives(lambda y, _: y))


@pytest.mark.parametrize(
    "give",
    [
        lambda y, _: (y, -y + y.flip(1)),
        lambda y, _: (y, y.softmax(1)),
        lambda y, f: (y, f[:, :4]),
        lambda y, _: [y, y * 2, y * 3],
        lambda y, _: (y, y),
    ],
    ids=["log-variances", "probabilities", "features", "list of three", "twice"],
)
@pytest.mark.parametrize("call", [OODModule.forward, OODModule.logits, OODModule.probe])
def test_several_outputs_are_refused_with_a_suggestion(give, call):
    """Two matrices are not silently averaged as logits."""
    with pytest.raises(InvalidArgumentError, match=r"got (tuple|list) of . .*OODModule\(\.\.\., output=0\)"):
        call(OODModule(Gives(give)), IMAGES)


@pytest.mark.parametrize(
    ("give", "output"),
    [
        (lambda y, f: (y, f), 0),
        (lambda y, f: (f, y), -1),
        (lambda y, _: (y, -y + y.flip(1)), 0),
        (lambda y, _: {"logits": y, "loss": None}, "logits"),
        (lambda y, f: AttributeDict(logits=y, pooled=f), "logits"),
        (ModelOutput, "logits"),
        (lambda y, _: (y, {"attention": y}), 0),
    ],
)
@torch.no_grad()
def test_the_requested_part_is_used(give, output):
    """Tuples, dictionaries and model outputs work with `output=`."""
    module = OODModule(Gives(give), output=output)
    assert module.probe(IMAGES).head_problem == ""
    expected = PLAIN(IMAGES)
    made = module(IMAGES)
    assert torch.equal(made.logits, expected.logits)
    assert torch.equal(made.features, expected.features)
    assert torch.equal(module.logits(IMAGES), expected.logits)


@pytest.mark.parametrize(
    ("give", "hint"),
    [
        (lambda y, _: {"logits": y, "loss": None}, "output='logits'"),
        (ModelOutput, "output='logits'.* or .*output='pooled'"),
        (lambda y, f: (y, f), "output=0.* or .*output=1"),
        (lambda _y, _f: None, "wrap the network in a module"),
    ],
)
def test_messages_name_the_parts_that_may_be_logits(give, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        OODModule(Gives(give))(IMAGES)


@pytest.mark.parametrize("output", [2, "scores"])
def test_a_missing_part_is_refused(output):
    with pytest.raises(InvalidArgumentError, match=f"output={output!r} to select .*, got tuple of 2 parts .*; select"):
        OODModule(Gives(lambda y, f: (y, f)), output=output)(IMAGES)
    with pytest.raises(
        InvalidArgumentError, match=f"output={output!r} .*, got a tensor of shape .*; omit output={output!r}"
    ):
        OODModule(Gives(lambda y, _: y), output=output)(IMAGES)


class Distilled(TinyDistilledNet):
    """Gives the outputs of its two heads, and names them, as networks of timm do."""

    def __init__(self, give=lambda one, two: (one, two)) -> None:
        super().__init__()
        self.give = give

    def get_classifier(self):
        return self.head, self.head_dist

    def forward(self, images):
        tokens = self.body(images).flatten(2)
        return self.give(self.head(tokens[..., 0]), self.head_dist(tokens[..., 1]))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*returns 2 heads")
def test_outputs_of_the_listed_heads_are_averaged():
    module, expected = OODModule(Distilled()), TinyDistilledNet()(IMAGES)
    torch.testing.assert_close(module.logits(IMAGES), expected)  # also before the first batch
    made = module(IMAGES)
    torch.testing.assert_close(made.logits, expected)
    assert made.features.shape == (4, 32)
    assert module.head_problem == ""
    torch.testing.assert_close(module.head(made.features), expected)


@pytest.mark.parametrize(
    "give", [lambda a, b: (a, a - b), lambda a, b: (a, b.exp()), lambda a, b: (a, b, a)], ids=["other", "exp", "three"]
)
def test_outputs_of_other_layers_than_the_listed_heads_are_refused(give):
    with pytest.raises(InvalidArgumentError, match="select the part to use"):
        OODModule(Distilled(give))(IMAGES)


@pytest.mark.parametrize(
    ("end", "what"),
    [
        (lambda y: y.softmax(1), r"returns probabilities \(rows sum to one\) .* softmax"),
        (lambda y: (100 * y).softmax(1), "returns probabilities"),
        (lambda y: y.log_softmax(1), r"returns log-probabilities .* log_softmax"),
        (lambda y: (100 * y).log_softmax(1), "returns log-probabilities"),
        (lambda y: y[:, :1].sigmoid() * torch.tensor([1.0, -1.0]) + torch.tensor([0.0, 1.0]), "returns probabilities"),
        (lambda y: y.bfloat16().softmax(1), "returns probabilities"),
    ],
    ids=["softmax", "sharp", "log-softmax", "sharp log-softmax", "two classes", "bfloat16"],
)
@pytest.mark.parametrize("call", [OODModule.forward, OODModule.probe])
def test_probabilities_are_refused(end, what, call):
    """The energy of log-probabilities is rounding noise."""
    with pytest.raises(InvalidArgumentError, match=f"Gives {what}"):
        call(OODModule(Gives(lambda y, _: end(y))), IMAGES)


def test_softmax_layers_and_scripted_networks_are_refused():
    network = nn.Sequential(nn.Flatten(), fill_arithmetic_(nn.Linear(192, 4)), nn.LogSoftmax(dim=1)).eval()
    for backbone in (network, torch.jit.trace(network, IMAGES)):
        with pytest.raises(InvalidArgumentError, match="log-probabilities"):
            OODModule(backbone).probe(IMAGES)
    assert OODModule(network[:2]).probe(IMAGES).head_problem == ""


@torch.no_grad()
def test_linear_logits_that_sum_to_one_are_accepted():
    """A least-squares classifier gives rows that sum to one, and they are what its features say."""
    network = Gives(lambda y, _: y)
    network.fc.weight.mul_(0.01)
    network.fc.weight[3] = -network.fc.weight[:3].sum(dim=0)
    network.fc.bias.fill_(0.25)
    made = OODModule(network)(IMAGES)
    assert bool((made.logits > 0).all())
    torch.testing.assert_close(made.logits.sum(dim=1), torch.ones(4))


@pytest.mark.parametrize("network", [TinyHiddenHeadNet(2), TinyHiddenHeadNet(6), TinyConvNet(2)])
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_logits_raise_no_false_alarm(network):
    OODModule(network).probe(IMAGES)


@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_equal_outputs_for_all_classes_are_warned_about():
    constant = Gives(lambda y, _: torch.full_like(y, 0.25))
    with pytest.warns(UserWarning, match="same logits for all classes"):
        OODModule(constant).probe(IMAGES)
