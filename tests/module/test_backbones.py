"""Features and heads of real architectures, with random weights.

Feature width, pooling, classifiers other than Linear, and no reliance on attribute names.
"""

from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn

from oodlit import OODModule
from oodlit.backbones.loading import load_network
from oodlit.base.plan import RunPlan
from oodlit.detectors import Energy, ViM
from oodlit.errors import InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.testing.backbones import TinyConvNet
from tests.networks import TinyConvolutionalClassifier, TinyDistilledNet, TinyHeadlessNet, TinyHiddenHeadNet

# Name, width of the features (the classifier's real input), number of heads whose logits are averaged.
ARCHITECTURES = {
    "caformer_s18": 2048,
    "convnext_atto": 320,
    "crossvit_tiny_240": 288,
    "deit_tiny_distilled_patch16_224": 384,
    "densenet121": 1024,
    "efficientformer_l1": 896,
    "efficientnet_b0": 1280,
    "efficientvit_b0": 1280,
    "fastvit_t8": 768,
    "ghostnet_050": 1280,
    "hgnetv2_b0": 2048,
    "inception_v4": 1536,
    "legacy_seresnet18": 512,
    "levit_128s": 768,
    "mixer_s32_224": 512,
    "mobilenetv3_small_050": 1024,
    "nasnetalarge": 4032,
    "regnetx_002": 368,
    "repvit_m0_9": 768,
    "resmlp_12_224": 384,
    "resnet18": 512,
    "resnetv2_50x1_bit": 2048,
    "rexnet_100": 1280,
    "senet154": 2048,
    "swin_tiny_patch4_window7_224": 768,
    "tf_efficientnet_lite0": 1280,
    "vgg11": 4096,
    "vit_tiny_patch16_224": 192,
    "xcit_nano_12_p16_224": 128,
}
SMALL_INPUT = 96
FIXED_SIZE = ("vit", "deit", "mixer", "resmlp", "levit", "efficientformer", "crossvit", "xcit", "swin", "vgg")


def images_for(name: str, network: nn.Module) -> torch.Tensor:
    fixed = any(word in name for word in FIXED_SIZE)
    height, width = network.pretrained_cfg["input_size"][1:] if fixed else (SMALL_INPUT, SMALL_INPUT)
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def random_module(name: str) -> OODModule:
    torch.manual_seed(0)
    module = OODModule(name, weights=None)
    with torch.no_grad():
        for layer in module.head_layers:  # biases start at zero, which would hide a forgotten bias
            bias = module.network.get_submodule(layer).bias
            if bias is not None:
                bias.uniform_(-1, 1)
    return module


def test_sweep_covers_what_it_says():
    assert len(ARCHITECTURES) == 29


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
@torch.no_grad()
def test_head_of_the_features_gives_the_logits(name):
    module = random_module(name)
    images = images_for(name, module.network)
    outputs = module(images)
    assert outputs.features.shape == (2, ARCHITECTURES[name])
    torch.testing.assert_close(outputs.logits, module.logits(images).float())
    torch.testing.assert_close(outputs.features, module.features(images))
    assert module.head_problem == ""
    torch.testing.assert_close(module.head(outputs.features), outputs.logits, rtol=1e-3, atol=1e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_architecture_without_linear_head_refuses_those_detectors_alone():
    module = random_module("volo_d1_224")
    facts = module.probe(images_for("vit", module.network))
    assert "not a linear function" in facts.head_problem
    assert "not a linear function" in ViM().why_not(facts)
    assert Energy().why_not(facts) == ""
    with pytest.raises(RequirementError, match="volo_d1_224: the logits are not a linear function"):
        _ = module.head


@pytest.mark.parametrize(
    ("network", "width"),
    [(TinyConvNet(6), 16), (TinyConvolutionalClassifier(6), 16), (TinyDistilledNet(6), 32)],
    ids=["linear", "1x1 convolution", "two heads"],
)
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_heads_of_plain_modules(network, width):
    module = OODModule(network, head=None if isinstance(network, TinyConvNet) else _head_name(network))
    outputs = module(torch.rand(3, 3, 8, 8))
    if isinstance(network, TinyDistilledNet):  # one named head is half the truth, and is found out
        assert "not a linear function" in module.head_problem
        return
    assert outputs.features.shape == (3, width)
    torch.testing.assert_close(module.head(outputs.features), outputs.logits)


def _head_name(network: nn.Module) -> str:
    return "fc" if hasattr(network, "fc") else "head"


@torch.no_grad()
def test_head_called_classifier_without_bias():
    """The name of the head does not matter, and a missing bias is zeros."""
    network = TinyConvNet(3, bias=False, head_name="classifier")
    module = OODModule(network)
    outputs = module(torch.rand(2, 3, 8, 8))
    assert module.head_layers == ("classifier",)
    assert module.head.offset.tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(module.head(outputs.features), outputs.logits)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_nonlinear_classifier_says_why():
    module = OODModule(TinyHiddenHeadNet(6))
    module(torch.rand(2, 3, 8, 8))
    assert "'head'" in module.head_problem


def test_network_without_classifier_needs_one_named():
    with pytest.raises(InvalidArgumentError, match="no final linear layer found; name the layer"):
        OODModule(TinyHeadlessNet())


def test_head_that_does_not_exist_names_the_near_ones():
    with pytest.raises(InvalidArgumentError, match=r"head='haed': unknown layer 'haed'.*'head'"):
        OODModule(TinyConvNet(6), head="haed")
    with pytest.raises(InvalidArgumentError, match=r"head='conv': expected a Linear"):
        OODModule(TinyConvNet(6), head="conv")


def test_network_that_gives_no_logits_is_refused():
    module = OODModule(nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Unflatten(1, (2, 2))))
    with pytest.raises(InvalidArgumentError, match=r"expected logits .*got a tensor of shape \(2, 2, 2\)"):
        module(torch.rand(2, 3, 8, 8))


def test_unknown_names_and_weights():
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        load_network("resnet_50")
    with pytest.raises(InvalidArgumentError, match=r"or an existing file, got 'nowhere\.safetensors'"):
        load_network("resnet18", "nowhere.safetensors")


def test_local_weights(tmp_path):
    torch.manual_seed(1)
    network = timm.create_model("resnet10t")
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    loaded = load_network("resnet10t", tmp_path / "weights.pth")
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    with pytest.raises(
        InvalidArgumentError, match=r"(?s)backbone 'resnet18': weights .* cannot be loaded .*; pass the weights of this"
    ):
        load_network("resnet18", tmp_path / "weights.pth")


@torch.no_grad()
def test_feature_map_of_timm_networks_leads_to_the_logits():
    module = random_module("resnet18")
    images = images_for("resnet18", module.network)
    assert module.probe(images).feature_map
    plan = RunPlan(extra_outputs=frozenset({"hidden"}), hidden_layers=("feature_map", "layer3"))
    module.trainer = SimpleNamespace(callbacks=[SimpleNamespace(plan=plan)])
    outputs = module.predict_step({"image": images}, 0)
    assert outputs.hidden["layer3"].shape[:2] == (2, 256)
    torch.testing.assert_close(module.logits_from_map(outputs.hidden["feature_map"]), outputs.logits)


def test_transform_is_that_of_the_backbone():
    import numpy as np
    from PIL import Image

    module = OODModule("vit_base_patch16_384.augreg_in21k_ft_in1k", weights=None)
    white = module.transform(Image.fromarray(np.full((500, 400, 3), 255, np.uint8)))
    assert white.shape == (3, 384, 384)
    torch.testing.assert_close(white, torch.ones_like(white))
    assert module.std.tolist() == [0.5, 0.5, 0.5]


def test_fingerprint_belongs_to_weights_and_transform():
    first, same = OODModule(TinyConvNet(6)), OODModule(TinyConvNet(6))
    assert first.fingerprint == same.fingerprint
    other = OODModule(TinyConvNet(6))
    with torch.no_grad():
        other.network.conv.weight[0, 0, 0, 0] += 1e-3
    assert other.fingerprint != first.fingerprint
    assert OODModule(TinyConvNet(6), transform=nn.Identity()).fingerprint != first.fingerprint


def test_eval_mode_and_no_training_statistics():
    """Batch norm uses its running statistics rather than those of the batch."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.BatchNorm1d(2), nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(self.norm(x))

    module = OODModule(Normed().train())
    outputs = module(torch.tensor([[10.0, 0.0], [12.0, 4.0]]))
    torch.testing.assert_close(outputs.features, torch.tensor([[10.0, 0.0], [12.0, 4.0]]), rtol=1e-4, atol=1e-4)


def test_weights_of_a_plain_network_are_loaded_or_refused(tmp_path):
    """A file that is named is never passed over: results would come from another network."""
    trained = TinyConvNet(6)
    with torch.no_grad():
        trained.conv.weight.add_(1.0)
    torch.save(trained.state_dict(), tmp_path / "net.pt")
    module = OODModule(TinyConvNet(6), weights=tmp_path / "net.pt")
    assert module.fingerprint == OODModule(trained).fingerprint != OODModule(TinyConvNet(6)).fingerprint
    with pytest.raises(InvalidArgumentError, match=r"'TinyConvNet': .* or an existing file, got 'nowhere\.pt'"):
        OODModule(TinyConvNet(6), weights="nowhere.pt")
    with pytest.raises(InvalidArgumentError, match=r"'TinyConvNet': weights .*net\.pt' cannot be loaded"):
        OODModule(TinyConvNet(5), weights=tmp_path / "net.pt")
