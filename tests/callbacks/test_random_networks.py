"""A network whose outputs depend on chance in eval mode is reported before the run, and in its results."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oodlit import OODModule
from oodlit.backbones.facts import is_random
from oodlit.callbacks import FeatureCache
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP
from oodlit.objects import ObjectModule
from oodlit.objects.adapters import FunctionReader, ImageBoxes
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import make_streams, make_trainer, run

MESSAGE = "returned different outputs for the same images in two passes"


class AlwaysDropout(TinyConvNet):
    """Forgets `training=self.training`."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(images, 0.5))


class NoisyFeatures(TinyConvNet):
    """Adds noise to its activations."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + 0.1 * torch.randn_like(images))


@contextmanager
def one_warning(message: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert sum(message in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("kind", [AlwaysDropout, NoisyFeatures])
def test_a_run_warns_before_it_starts_and_records_a_finding(kind: Callable[[int], nn.Module]) -> None:
    with one_warning(MESSAGE):
        results = run([MSP()], module=OODModule(kind(6), name="noisy"), streams=make_streams(with_train=False)).results
    (finding,) = [found for found in results.findings if found.kind == "random"]
    assert finding.text.startswith(f"network noisy {MESSAGE}")
    assert not finding.is_good
    assert "random" in {found.kind for found in results.recompute(tpr=0.9).findings}


def test_a_recording_of_features_warns(tmp_path: Path) -> None:
    data = OODDataModule(make_streams(with_train=False), batch_size=16)
    with one_warning(MESSAGE):
        module = OODModule(AlwaysDropout(6))
        make_trainer(FeatureCache(tmp_path)).predict(module, data, return_predictions=False)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_object_detector_is_compared_as_well(noise: float) -> None:
    network = nn.Linear(3, 2)

    def read(images: list[Tensor]) -> list[ImageBoxes]:
        logits = torch.zeros(1, 2) + noise * torch.randn(1, 2)
        boxes = torch.tensor([[0.0, 0, 5, 5]])
        return [ImageBoxes(boxes, torch.ones(1), torch.zeros(1, dtype=torch.int64), logits) for _ in images]

    module = ObjectModule(FunctionReader(read, network=network), name="noisy")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = module.probe([torch.zeros(3, 8, 8)])
    assert facts.is_random == bool(noise)
    assert [str(warning.message).startswith(f"noisy {MESSAGE}") for warning in caught] == [True] * bool(noise)


def test_usual_networks_are_not_random() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not OODModule(TinyConvNet(6, dropout=0.5)).probe(torch.rand(2, 3, 8, 8)).is_random


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, -torch.inf], [1.0, -torch.inf], False),
        ([1e6, 1.0], [1e6, 1.5], False),  # rounding of the largest value
        ([1.0, 1.0], [1.0, 1.5], True),
        ([1.0, torch.nan], [1.0, 2.0], True),
        ([1.0], [1.0, 2.0], True),
        ([], [], False),
    ],
)
def test_rounding_is_not_randomness(first: list[float], second: list[float], expected: bool) -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert is_random([torch.tensor(first), None], [torch.tensor(second), None], "net") is expected
