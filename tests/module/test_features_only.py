"""Backbones without classifier give features alone."""

import pytest
import timm
import torch
from torch import nn

from oodlit import OODModule
from oodlit.detectors import KNN, MSP, Mahalanobis, ViM
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.testing.backbones import TinyConvNet, arithmetic
from tests.module.test_backbones import images_for
from tests.networks import TinyHeadlessNet

IMAGES = arithmetic(3, 3, 8, 8).float()


def headless_resnet() -> nn.Module:
    """As people make one: the classifier becomes an Identity."""
    network = TinyConvNet(6, head_name="fc")
    network.fc = nn.Identity()
    return network


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        (headless_resnet, {}),
        (TinyHeadlessNet, {"features_only": True}),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 16)), {"features_only": True}),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 4), nn.AdaptiveAvgPool2d(1)), {"features_only": True}),
    ],
    ids=["identity", "no layer", "told", "1x1 map"],
)
@torch.no_grad()
def test_outputs_without_a_classifier_are_features(network, settings):
    """Backbones without a classifier are enough for detectors such as KNN."""
    network = network().eval()
    module = OODModule(network, **settings)
    facts = module.probe(IMAGES, num_train=5000)
    assert (facts.width, facts.num_classes) == (16, 0)
    made = module.predict_step({"image": IMAGES, "key": ["a/0", "a/1", "a/2"]}, 0)
    assert made.logits is None
    assert torch.equal(made.features, network(IMAGES).flatten(1))
    assert (KNN().why_not(facts), Mahalanobis().why_not(facts)) == ("", "")
    assert MSP().why_not(facts) == "needs logits, which " + module.name + " does not provide"
    assert ViM().why_not(facts) == "needs the linear head; the network has no classifier"
    empty = module.predict_step({"image": IMAGES[:0]}, 0)
    assert (empty.logits, empty.features.shape) == (None, (0, 16))
    for ask in (lambda: module.head, lambda: module.logits(IMAGES)):
        with pytest.raises(RequirementError, match="has no classifier"):
            ask()


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("vit_tiny_patch16_224", 192),
        ("resnet18", 512),
        ("convnext_atto", 320),
        ("swin_tiny_patch4_window7_224", 768),
        ("deit_tiny_distilled_patch16_224", 192),
    ],
)
@torch.no_grad()
def test_timm_networks_without_classes(name, width):
    network = timm.create_model(name, num_classes=0).eval()
    module = OODModule(network)
    facts = module.probe(images_for(name, network))
    assert (facts.width, facts.num_classes) == (width, 0)
    assert module.transform is not None


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_base_patch16_siglip_224"])
@torch.no_grad()
def test_timm_names_without_classes(name):
    module = OODModule(name, weights=None)
    size = module.network.pretrained_cfg["input_size"][1]
    facts = module.probe(torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)))
    assert (facts.width, facts.num_classes) == (module.network.num_features, 0)


def test_maps_and_tokens_are_not_pooled_implicitly():
    network = timm.create_model("resnet18", num_classes=0, global_pool="")
    with pytest.raises(InvalidArgumentError, match=r"features.*; pool the features"):
        OODModule(network).probe(images_for("resnet18", network))


@torch.no_grad()
def test_part_of_the_output():
    class Two(nn.Module):
        def forward(self, images):
            return {"pooled": images.mean(dim=(2, 3)), "map": images}

    module = OODModule(Two(), features_only=True, output="pooled")
    assert torch.equal(module(IMAGES).features, IMAGES.mean(dim=(2, 3)))
    with pytest.raises(InvalidArgumentError, match="output='pooled'"):
        OODModule(Two(), features_only=True)(IMAGES)
    with pytest.raises(InvalidArgumentError, match=r"expected features .*returns one feature vector per image"):
        OODModule(nn.Flatten(0), features_only=True)(IMAGES)


def test_head_contradicts_features_only():
    with pytest.raises(InvalidArgumentError, match="or features_only=True, not both"):
        OODModule(TinyConvNet(6), head="head", features_only=True)


class LastHasAnotherName(nn.Module):
    """An Identity has the name of a classifier, and the classifier another."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.output = nn.Identity(), nn.Linear(192, 4)

    def forward(self, images):
        return self.output(self.head(images.flatten(1)))


def test_an_identity_beside_a_linear_layer_does_not_mean_features_only():
    facts = OODModule(LastHasAnotherName()).probe(IMAGES)
    assert (facts.num_classes, facts.width, facts.head_problem) == (4, 192, "")
