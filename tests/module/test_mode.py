"""A network that is passed stays in its mode, and every pass is made in eval mode."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from oodlit import OODModule
from oodlit.backbones.clip import ZeroShotClassifier
from oodlit.backbones.identity import SAMPLED, WeightsWatch
from oodlit.callbacks import OODDetection
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP, ODIN, Mahalanobis
from oodlit.objects import ObjectModule
from oodlit.objects.adapters import FunctionReader
from tests.callbacks.support import make_streams, make_trainer


class Normed(nn.Module):
    """Batch norm and dropout, which differ between the modes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(6, 6)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.drop(self.features(images).flatten(1)))


def in_some_mode(*, part_in_eval: bool) -> Normed:
    network = Normed().train()
    if part_in_eval:
        network.features.eval()
    return network


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


PASSES: dict[str, Callable[[OODModule, Tensor], object]] = {
    "forward": lambda module, images: module(images),
    "logits": lambda module, images: module.logits(images),
    "features": lambda module, images: module.features(images),
    "probe": lambda module, images: module.probe(images),
    "fingerprint": lambda module, images: module.fingerprint,
    "exact": lambda module, images: module.exact_outputs(images),
    "hidden": lambda module, images: module.probe(images, layers=["features.0"]),
}


@pytest.mark.parametrize("part_in_eval", [True, False])
@pytest.mark.parametrize("name", PASSES)
@torch.no_grad()
def test_a_pass_has_no_side_effect(name: str, part_in_eval: bool) -> None:
    network = in_some_mode(part_in_eval=part_in_eval)
    known, before, images = modes(network), state(network), torch.rand(4, 3, 8, 8)
    module = OODModule(network)
    assert modes(network) == known
    PASSES[name](module, images)
    assert modes(network) == known
    for entry, value in state(network).items():
        torch.testing.assert_close(value, before[entry], rtol=0, atol=0)
    logits = module(images).logits
    torch.testing.assert_close(logits, network.eval()(images))


def evaluate(network: nn.Module, **options: object) -> OODDetection:
    detection = OODDetection([MSP(), ODIN(), Mahalanobis()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # findings about a network that nobody has trained
        make_trainer(detection, **options).predict(OODModule(network), OODDataModule(make_streams(), batch_size=8))
    return detection


def test_a_run_restores_the_mode_and_scores_in_eval_mode() -> None:
    network = in_some_mode(part_in_eval=True)
    known, before = modes(network), state(network)
    results = evaluate(network).results
    assert modes(network) == known
    for entry, value in state(network).items():
        torch.testing.assert_close(value, before[entry], rtol=0, atol=0)
    expected = evaluate(network.eval()).results
    assert results.scores.equals(expected.scores)


class Fails(Normed):
    """Fails in a pass of a run after the probe."""

    is_probed = False

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 2:
            raise RuntimeError("this pass fails")
        return super().forward(images)


def test_a_run_that_fails_restores_the_mode() -> None:
    network = Fails().train()
    network.features.eval()
    known = modes(network)
    with pytest.raises(RuntimeError, match="this pass fails"):
        evaluate(network)
    assert modes(network) == known


def test_wrappers_leave_the_mode_alone() -> None:
    network = in_some_mode(part_in_eval=True)
    known = modes(network)
    OODModule(nn.DataParallel(network))
    ZeroShotClassifier(network, torch.eye(6), scale=10)
    ObjectModule(FunctionReader(lambda images, cells: [], network=network))
    assert modes(network) == known


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("place", [0, SAMPLED // 2, -1])
def test_changed_weights_are_noticed(place: int, channels_last: bool) -> None:
    """Every value of tensors with up to `SAMPLED` values counts, in any order of the memory."""
    layer = nn.Conv2d(8, 32, 4)
    assert layer.weight.numel() == SAMPLED
    if channels_last:
        layer.to(memory_format=torch.channels_last)
    watch = WeightsWatch(layer)
    layer.to(memory_format=torch.contiguous_format)
    assert watch.is_unchanged()
    layer.weight.data.view(-1)[place] += 1e-3
    assert not watch.is_unchanged()


def test_large_tensors_are_sampled_and_their_versions_count() -> None:
    layer = nn.Linear(100, 200)
    watch = WeightsWatch(layer)
    layer.weight.data.mul_(1.001)
    assert not watch.is_unchanged()
    watch = WeightsWatch(layer)
    with torch.no_grad():
        layer.weight[1, 1] += 1e-3  # a single value, but the version counts it
    assert not watch.is_unchanged()
