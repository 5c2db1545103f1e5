"""Hidden activations and features: kept by value, channels first."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from oodlit import OODModule
from oodlit.backbones.layout import FEATURE_MAP
from oodlit.base.plan import RunPlan
from oodlit.detectors import LaRD, RankFeat
from oodlit.detectors.statistics import channel_means
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_
from tests.module.test_backbones import images_for, random_module

IMAGES = arithmetic(4, 3, 8, 8).float() - 0.5


def hidden(module: OODModule, *layers: str, images: torch.Tensor = IMAGES, extra: frozenset = frozenset()):
    plan = RunPlan(extra_outputs=frozenset({"hidden"}) | extra, hidden_layers=layers)
    module.trainer = SimpleNamespace(callbacks=[SimpleNamespace(plan=plan)])
    with torch.no_grad():
        return module.predict_step({"image": images}, 0)


def blocks(*, inplace: bool) -> nn.Module:
    layers = [
        nn.Conv2d(3, 8, 4, stride=4),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(8, 8, 1),
        nn.Hardswish(inplace=inplace),
        nn.Flatten(),
        nn.Linear(32, 5),
    ]
    return fill_arithmetic_(nn.Sequential(*layers))


def test_inplace_layers_do_not_modify_captured_activations():
    """Activations are copied: a later in-place layer overwrites its input."""
    one, other = (hidden(OODModule(blocks(inplace=inplace)), "0", "2").hidden for inplace in (False, True))
    for layer in ("0", "2"):
        assert torch.equal(one[layer], other[layer]), layer
        assert bool((other[layer] < 0).any())


class WritesBehind(nn.Module):
    """Writes to its images before, to the head's input after it was used, and to the feature map."""

    num_features = 8

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv, self.fc = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 5)
        fill_arithmetic_(self)

    def get_classifier(self):
        return self.fc

    def forward_features(self, images):
        images = images.sub_(0.2) if self.inplace else images - 0.2
        return self.conv(images)

    def forward_head(self, maps):
        maps = maps.relu_() if self.inplace else maps.relu()
        pooled = maps.mean(dim=(2, 3))
        logits = self.fc(pooled)
        pooled.zero_()
        return logits

    def forward(self, images):
        return self.forward_head(self.forward_features(images))


def test_images_features_and_feature_map_are_copied():
    first, second = (
        hidden(OODModule(WritesBehind(inplace=i)), FEATURE_MAP, images=IMAGES.clone(), extra=frozenset({"images"}))
        for i in (False, True)
    )
    assert bool((first.features != 0).any())
    for name in ("logits", "features", "images"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.hidden[FEATURE_MAP], second.hidden[FEATURE_MAP])
    module = OODModule(WritesBehind(inplace=True))
    assert torch.equal(module.logits(IMAGES), module.logits(IMAGES))
    maps = second.hidden[FEATURE_MAP]
    assert torch.equal(module.logits_from_map(maps), module.logits_from_map(maps))
    assert torch.equal(module.logits_from_map(maps), second.logits)


@pytest.mark.parametrize(
    ("name", "layer", "channels", "positions"),
    [
        ("swin_tiny_patch4_window7_224", FEATURE_MAP, 768, (7, 7)),
        ("swin_tiny_patch4_window7_224", "layers.1", 192, (28, 28)),
        ("swin_tiny_patch4_window7_224", "norm", 768, (7, 7)),
        ("vit_tiny_patch16_224", FEATURE_MAP, 192, (197,)),
        ("vit_tiny_patch16_224", "blocks.3", 192, (197,)),
        ("vit_tiny_patch16_224", "blocks.3.mlp.fc1", 768, (197,)),
        ("mixer_s32_224", "blocks.2", 512, (49,)),
        ("convnext_atto", "stages.3", 320, (3, 3)),
        ("convnext_atto", "stages.3.blocks.0.mlp.fc1", 1280, (3, 3)),
        ("resnet18", "layer3", 256, (6, 6)),
        ("resnet18", "maxpool", 64, (24, 24)),
        ("resnet18", "layer2.0.act2", 128, (12, 12)),
        ("efficientnet_b0", "blocks.4", 112, (6, 6)),
        ("resnet18", "global_pool", 512, ()),
    ],
)
def test_channels_come_first(name, layer, channels, positions):
    """Channels-last maps have 768 channels, not 7."""
    module = random_module(name)
    images = images_for(name, module.network)
    facts = module.probe(images, layers=(layer,))
    assert (facts.channels, facts.layer_problems) == ({layer: channels}, {})
    outputs = hidden(module, layer, images=images)
    assert outputs.hidden[layer].shape == (2, channels, *positions)
    assert channel_means(outputs, layer).shape == (2, channels)


def test_the_mean_is_over_positions():
    module = random_module("swin_tiny_patch4_window7_224")
    images = images_for("swin", module.network)
    outputs = hidden(module, FEATURE_MAP, images=images)
    with torch.no_grad():
        own = module.network.forward_features(images)
    torch.testing.assert_close(channel_means(outputs, FEATURE_MAP), own.mean(dim=(1, 2)))
    torch.testing.assert_close(module.logits_from_map(outputs.hidden[FEATURE_MAP]), outputs.logits)
    assert RankFeat().why_not(module.probe(images)) == ""


class Video(nn.Module):
    """5-D maps, channels first or last."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 6, (1, 4, 4), stride=(1, 4, 4))
        self.block = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) if last else nn.Sequential(nn.Conv3d(6, 6, 1))
        self.last, self.fc = last, nn.Linear(6, 5)
        fill_arithmetic_(self)

    def forward(self, clips):
        maps = self.conv(clips)
        maps = self.block(maps.movedim(1, -1)).movedim(-1, 1) if self.last else self.block(maps)
        return self.fc(maps.mean(dim=(2, 3, 4)))


@pytest.mark.parametrize("last", [False, True])
def test_maps_of_video_clips(last):
    clips = arithmetic(2, 3, 5, 8, 12).float()
    module = OODModule(Video(last=last))
    outputs = hidden(module, "block", images=clips)
    assert outputs.hidden["block"].shape == (2, 6, 5, 2, 3)
    LaRD("block", density="knn", k=1)
    assert channel_means(outputs, "block").shape == (2, 6)


class Square(nn.Module):
    """A block whose map is as wide as it has channels."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.block = Inner(size)
        self.fc = nn.Linear(size, 5)
        fill_arithmetic_(self)

    def forward(self, images):
        return self.fc(self.block(images).mean(dim=(2, 3)))


class Inner(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, size, 3, padding=1)

    def forward(self, images):
        return self.conv(images).relu()


def test_ambiguous_channel_axes_are_refused():
    with pytest.raises(
        InvalidArgumentError,
        match=r"on axis 1 or on the last axis; .* OODModule\(\.\.\., channel_axis=\{'block': 1\}\)",
    ):
        hidden(OODModule(Square()), "block")
    facts = OODModule(Square()).probe(IMAGES, layers=("block", "block.conv", "nowhere", FEATURE_MAP))
    assert facts.channels == {"block.conv": 8}  # a convolution says where its channels are
    assert set(facts.layer_problems) == {"block", "nowhere", FEATURE_MAP}
    assert "unknown layer 'nowhere'" in facts.layer_problems["nowhere"]
    asked = {
        axis: hidden(OODModule(Square(), channel_axis={"block": axis}), "block").hidden["block"] for axis in (1, -1)
    }
    assert torch.equal(asked[1], asked[-1].movedim(1, -1))
    with pytest.raises(InvalidArgumentError, match="cannot be on axis 4"):
        hidden(OODModule(Square(), channel_axis={"block": 4}), "block")


def test_layers_that_give_no_tensor_or_are_not_there():
    module = OODModule(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (4, 192)), nn.Linear(192, 4)))
    with pytest.raises(InvalidArgumentError, match="layer '0': expected its output"):
        hidden(module, "0")
    with pytest.raises(InvalidArgumentError, match=r"unknown layer '7'"):
        hidden(module, "7")
    with pytest.raises(RequirementError, match=r"expected a timm network, .* no method forward_features"):
        hidden(OODModule(TinyConvNet(6)), FEATURE_MAP)


class Concatenates(nn.Module):
    """Has more channels than any of its layers, as dense and inception blocks have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.more = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 5, 1)

    def forward(self, images):
        first = self.conv(images)
        return torch.cat([first, self.more(first)], dim=1)


def test_blocks_that_concatenate():
    network = nn.Sequential(Concatenates(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(13, 4))
    assert OODModule(network).probe(IMAGES, layers=("0",)).channels == {"0": 13}
    wide = arithmetic(2, 3, 6, 5).float()  # its last axis is as large as the last layer has channels
    with pytest.raises(InvalidArgumentError, match="its channels may be on axis 1 or on the last axis"):
        hidden(OODModule(network), "0", images=wide)


class Permuted(nn.Sequential):
    """Layer "1" works on channels last, after a convolution; layer "2" is the classifier."""

    def forward(self, images):
        return self[2](self[1](self[0](images).permute(0, 2, 3, 1)).mean(dim=(1, 2)))


class OverPositions(nn.Sequential):
    """Layer "1" is linear over the 64 positions of 16 channels, as in a mixer."""

    def forward(self, images):
        return self[2](self[1](self[0](images).flatten(2)).mean(dim=2))


@pytest.mark.parametrize(
    ("network", "axis", "channels"),
    [
        (Permuted(nn.Conv2d(3, 16, 1), nn.GELU(), nn.Linear(16, 4)), -1, 16),
        (OverPositions(nn.Conv2d(3, 16, 1), nn.Linear(64, 32), nn.Linear(16, 4)), 1, 16),
        (OverPositions(nn.Conv2d(3, 16, 1), nn.Sequential(nn.Linear(64, 32), nn.GELU()), nn.Linear(16, 4)), 1, 16),
    ],
    ids=["activation", "positions", "block over positions"],
)
def test_channel_axes_that_contradict_the_sizes_are_refused(network, axis, channels):
    images = torch.rand(2, 3, 8, 8)
    facts = OODModule(network).probe(images, layers=("1",))
    assert facts.channels == {}
    assert "channel_axis={'1': 1}" in facts.layer_problems["1"]
    asked = OODModule(network, channel_axis={"1": axis}).probe(images, layers=("1",))
    assert (asked.channels, asked.layer_problems) == ({"1": channels}, {})


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mixer_s32_224", [f"blocks.0.mlp_tokens{part}" for part in ("", ".fc1", ".act", ".fc2")]),
        ("resmlp_12_224", ["blocks.0.linear_tokens"]),
    ],
)
def test_positions_are_never_mistaken_for_channels(name, layers):
    module = random_module(name)
    facts = module.probe(images_for(name, module.network), layers=layers)
    assert facts.channels == {}
    assert all("channel_axis" in facts.layer_problems[layer] for layer in layers)
