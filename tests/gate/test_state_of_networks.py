"""A gate decides as its run in whatever mode, precision or state its network is, or says that it changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from oodlit import Gate, OODModule
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import FingerprintError
from oodlit.outputs import Outputs
from tests.gate.support import TinyNetwork, run


class Normalized(TinyNetwork):
    """With running statistics, which a pass in training mode moves."""

    def __init__(self) -> None:
        super().__init__()
        self.features.insert(1, torch.nn.BatchNorm2d(8))

    def frozen_part(self) -> torch.nn.Module:
        return self.features[0]


@pytest.fixture(scope="module")
def normalized(root: Path, data: OODDataModule) -> Path:
    run(OODModule(Normalized(), transform=data.transform), data, [MSP(), Mahalanobis()], root / "normalized")
    return root / "normalized"


@pytest.mark.parametrize("of_all", [True, False])
def test_a_network_in_training_mode_decides_as_in_the_run(
    normalized: Path, pictures: dict[str, Image.Image], of_all: bool
) -> None:
    """One image had four scores, and the gate moved the statistics of the user's network."""
    network = Normalized()
    images = list(pictures.values())
    gate = Gate.load(normalized, detector="mahalanobis", model=network)
    expected = [verdict.score for verdict in gate(images)]
    gate.module.network.train()
    if not of_all:
        gate.module.network.frozen_part().eval()
    modes = [module.training for module in gate.module.network.modules()]
    state = {name: value.clone() for name, value in gate.module.network.state_dict().items()}
    for _ in range(3):
        assert [verdict.score for verdict in gate(images)] == expected
    assert [module.training for module in gate.module.network.modules()] == modes
    for name, value in gate.module.network.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


class Observer(MSP):
    """Notes the mode of the network while it scores."""

    needs = frozenset({"logits", "model"})

    def _score(self, outputs: Outputs) -> torch.Tensor:
        assert not any(module.training for module in outputs.model.network.modules())
        return super()._score(outputs)


def test_detectors_see_the_network_in_eval_mode(normalized: Path, pictures: dict[str, Image.Image]) -> None:
    gate = Gate.load(normalized, detector="msp", model=Normalized())
    observed = Gate(gate.module, Observer(), gate.record, calibration=gate.calibration)
    gate.module.network.train()
    assert observed(list(pictures.values())) == gate(list(pictures.values()))
    assert gate.module.network.training


def _step(network: torch.nn.Module) -> None:
    network.head.weight.grad = torch.ones_like(network.head.weight)
    torch.optim.SGD([network.head.weight], lr=0.1).step()


def _load(network: torch.nn.Module) -> None:
    network.load_state_dict({name: value + 1 for name, value in network.state_dict().items()})


def _average(network: torch.nn.Module) -> None:
    for value in network.parameters():
        value.data.mul_(0.999).add_(1e-4)


def _one_value(network: torch.nn.Module) -> None:
    network.head.weight.data[3, 5] += 1e-3


def _statistics(network: torch.nn.Module) -> None:
    network.train()(torch.rand(4, 3, 8, 8))


@pytest.mark.parametrize("change", [_step, _load, _average, _one_value, _statistics])
def test_weights_that_change_after_loading_are_refused(
    normalized: Path, pictures: dict[str, Image.Image], tmp_path: Path, change: Callable[[torch.nn.Module], None]
) -> None:
    gate = Gate.load(normalized, detector="mahalanobis", model=Normalized())
    images = list(pictures.values())
    expected = gate(images)
    before = {name: value.clone() for name, value in gate.module.network.state_dict().items()}
    change(gate.module.network)
    for refused in (lambda: gate(images), lambda: gate.save(tmp_path / "s"), lambda: gate.export(tmp_path / "e.pt2")):
        with pytest.raises(FingerprintError, match=r"^Gate: the weights of Normalized have changed"):
            refused()
    gate.module.network.load_state_dict(before)  # other tensors or versions, equal values
    assert gate(images) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_autocast_around_the_gate_changes_nothing(
    gate: Gate, pictures: dict[str, Image.Image], dtype: torch.dtype
) -> None:
    images = list(pictures.values())
    expected = [verdict.score for verdict in gate(images)]
    with torch.autocast("cpu", dtype):
        assert [verdict.score for verdict in gate(images)] == expected
