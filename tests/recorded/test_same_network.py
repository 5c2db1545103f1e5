"""A cache opens for the network that it was recorded with, also where only its outputs can tell."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP
from oodlit.errors import FingerprintError
from oodlit.recorded import FeatureCache, open_cache
from oodlit.testing.backbones import fill_arithmetic_
from tests.callbacks.support import make_streams, make_trainer
from tests.recorded.support import record

pytestmark = [  # nobody has trained the network
    pytest.mark.filterwarnings("ignore::oodlit.results.finding.FindingWarning"),
    pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning"),
]


class Network(nn.Module):
    """For images of any size; activation and temperature are not among its weights."""

    def __init__(self, activation: nn.Module, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), activation, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head, self.temperature = nn.Linear(16, 6), temperature
        fill_arithmetic_(self).to(dtype)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images) / self.temperature)
        return logits


def relu(**options) -> OODModule:
    return OODModule(Network(nn.ReLU(), **options), name="own")


@pytest.fixture(scope="module", params=["alone", "beside a run", "before a run"])
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensors are recorded: no picture ever passes through the network."""
    folder = tmp_path_factory.mktemp("cache")
    callbacks = [FeatureCache(folder)]
    if request.param != "alone":
        callbacks.insert(request.param == "before a run", OODDetection([MSP()], train_thresholds=True))
    make_trainer(*callbacks).predict(relu(), OODDataModule(make_streams()), return_predictions=False)
    return folder


@pytest.mark.parametrize(
    "other",
    [Network(nn.GELU()), Network(nn.ReLU(), temperature=5.0), Network(nn.LeakyReLU(0.3))],
    ids=["activation", "temperature", "slope"],
)
def test_another_forward_with_equal_weights_is_refused(cache: Path, other: nn.Module) -> None:
    for data in (None, OODDataModule(make_streams())):
        with pytest.raises(FingerprintError, match="the output of the network for built-in test pictures differs"):
            open_cache(cache, OODModule(other, name="own"), data)


def test_the_same_network_is_accepted_whatever_it_was_used_for(cache: Path) -> None:
    used = relu()
    used.probe(torch.rand(2, 3, 24, 16))
    for module in (relu(), used):
        open_cache(cache, module)
        open_cache(cache, module, OODDataModule(make_streams()))
    with pytest.raises(FingerprintError, match="weights differs"):
        open_cache(cache, relu(dtype=torch.bfloat16))


def test_networks_in_half_precision_are_compared(tmp_path: Path) -> None:
    half = {"dtype": torch.bfloat16}
    record(tmp_path, module=relu(**half), trainer={"precision": "bf16-true"})
    open_cache(tmp_path, relu(**half))
    with pytest.raises(FingerprintError, match="the output of the network for built-in test pictures differs"):
        open_cache(tmp_path, relu(**half, temperature=5.0))
