"""Networks and transforms that the record of a run can make again: a gate then needs the folder alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from oodlit import Gate, OODModule, Results
from oodlit.cli.main import main
from oodlit.datamodules import OODDataModule
from oodlit.detectors import KNN, MSP
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError, RequirementError
from oodlit.gate.rebuilding import precision_context
from tests.gate.support import TinyNetwork, digits, run

pytestmark = pytest.mark.integration

CONFIG = """
backbone:
  class_path: OODModule
  init_args:
    backbone:
      class_path: made_again_network.Network
      init_args: {width: 5}
    head: head
data:
  class_path: tests.gate.support.digits
  init_args: {root: shards, max_images: 20}
detectors: [MSP]
accelerator: cpu
out: results
seed: 7
"""
NETWORK = """
from torch import nn

class Network(nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, width, 8), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(width, 7)

    def forward(self, images):
        return self.head(self.features(images))
"""

TRANSFORM = """
from torchvision.transforms import ToTensor

class Halved:
    def __init__(self, by: float):
        self.by, self.to_tensor = by, ToTensor()

    def __call__(self, image):
        return self.to_tensor(image) / self.by
"""
CONFIG_OF_TRANSFORM = """
backbone: tests.gate.support.TinyNetwork
data:
  class_path: OODDataModule
  init_args:
    streams:
      - {class_path: tests.gate.support.stream, init_args: {root: shards, name: digits_val}}
      - {class_path: tests.gate.support.stream, init_args: {root: shards, name: digits_near}}
    transform: {class_path: made_again_transform.Halved, init_args: {by: 2.0}}
    max_images: 20
detectors: [MSP]
accelerator: cpu
out: results
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OODDataModule:
    return digits(tmp_path_factory.mktemp("data"), max_images=20)


def test_a_run_of_the_command_line_is_made_again_with_its_random_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("made_again_network.py").write_text(NETWORK)
    Path("run.yaml").write_text(CONFIG)
    assert main(["evaluate", "--config", "run.yaml"]) == 0, capsys.readouterr().err
    state = torch.get_rng_state()
    gate = Gate.load("results")
    assert torch.equal(torch.get_rng_state(), state)
    images = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8)
    gate.save("gate")
    assert Gate.load("gate")(images) == gate(images)
    Path("made_again_network.py").unlink()
    monkeypatch.delitem(__import__("sys").modules, "made_again_network")
    with pytest.raises(InvalidArgumentError, match=r"results: the network cannot be rebuilt .*made_again_network"):
        Gate.load("results")
    with pytest.raises(
        InvalidArgumentError, match=r"gate: the network cannot be used as model=\.\.\. .*'my_net'.*model=network"
    ):
        Gate.load("gate", model="my_net")


def test_a_folder_without_a_run_or_a_gate_is_refused_with_what_it_must_contain(tmp_path: Path) -> None:
    for found in ("no files", r"model\.safetensors"):
        with pytest.raises(DataError, match=rf"folder of a run, with run\.json, .* with gate\.json; found {found}"):
            Gate.load(tmp_path, detector="msp")
        (tmp_path / "model.safetensors").write_text("x")


def test_a_network_with_a_name_and_a_file_is_made_again(data: OODDataModule, tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", pretrained=False, num_classes=1000)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    module = OODModule("test_resnet", weights=tmp_path / "weights.pt", transform=data.transform)
    run(module, data, [MSP()], tmp_path / "run")
    gate = Gate.load(tmp_path / "run")
    assert gate.record.class_names == ()  # the digits have other classes than the network
    image = torch.zeros(3, 8, 8)
    assert gate(image)[0].class_name == ""
    gate.save(tmp_path / "gate")
    (tmp_path / "weights.pt").unlink()
    assert Gate.load(tmp_path / "gate")(image) == gate(image)
    with pytest.raises(InvalidArgumentError, match="or an existing file, got"):
        Gate.load(tmp_path / "run")


def test_a_dotted_path_is_made_again_and_other_random_weights_are_refused(data: OODDataModule, tmp_path: Path) -> None:
    run(OODModule("tests.gate.support.TinyNetwork", transform=data.transform), data, [MSP()], tmp_path / "run")
    assert len(Gate.load(tmp_path / "run")(torch.zeros(5, 3, 8, 8))) == 5
    run(OODModule("test_resnet", weights=None, transform=data.transform), data, [MSP()], tmp_path / "random")
    with pytest.raises(FingerprintError, match="the state of the weights differs"):
        Gate.load(tmp_path / "random")


def test_a_transform_that_is_no_record_has_to_be_given(data: OODDataModule, tmp_path: Path) -> None:
    class Own:
        def __call__(self, image: object) -> torch.Tensor:
            made: torch.Tensor = data.transform(image)  # type: ignore[misc]
            return made

    own = Own()
    loaded = OODDataModule(data.streams, transform=own)
    run(OODModule("tests.gate.support.TinyNetwork"), loaded, [MSP()], tmp_path / "run")
    with pytest.raises(
        InvalidArgumentError,
        match=r"the transform .* cannot be rebuilt from the record; pass it as Gate.load\(..., transform=...\)",
    ):
        Gate.load(tmp_path / "run")
    assert Gate.load(tmp_path / "run", transform=own).module.transform is own


def test_a_run_of_before_is_said(data: OODDataModule, tmp_path: Path) -> None:
    run(OODModule("tests.gate.support.TinyNetwork", transform=data.transform), data, [MSP()], tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    del record["backbone"]["input_shape"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"run\.json is missing the input_shape of the backbone, .* evaluate again"):
        Gate.load(tmp_path / "run")


def test_a_transform_of_the_configuration_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("made_again_transform.py").write_text(TRANSFORM)
    Path("run.yaml").write_text(CONFIG_OF_TRANSFORM)
    assert main(["evaluate", "--config", "run.yaml"]) == 0, capsys.readouterr().err
    assert repr(Gate.load("results").module.transform).startswith("<made_again_transform.Halved")


def test_a_network_without_classifier(data: OODDataModule, tmp_path: Path) -> None:
    network = TinyNetwork().features
    module = OODModule(network, transform=data.transform, features_only=True)
    run(module, data, [KNN(k=2)], tmp_path / "run")
    (verdict,) = Gate.load(tmp_path / "run", model=network)(torch.zeros(3, 8, 8))
    assert (verdict.class_index, verdict.class_name) == (None, "")
    assert math.isnan(verdict.probability)
    assert isinstance(verdict.accepted, bool)


def test_a_run_in_half_precision_is_repeated_in_it(data: OODDataModule, tmp_path: Path) -> None:
    module = OODModule("tests.gate.support.TinyNetwork", transform=data.transform)
    run(module, data, [MSP()], tmp_path / "run", precision="bf16-mixed")
    gate = Gate.load(tmp_path / "run")
    rows = Results.load(tmp_path / "run").scores.set_index("key")["msp"]
    images = data.read_images(rows.index)
    found = [verdict.score for verdict in gate([images[key] for key in rows.index])]
    assert found == pytest.approx(rows.tolist(), rel=0.01)
    gate._precision = precision_context("32-true")
    full = [verdict.score for verdict in gate([images[key] for key in rows.index])]
    errors = np.abs(np.array([found, full]) - rows.to_numpy()).max(axis=1)
    assert errors[0] < errors[1] / 2
    with pytest.raises(RequirementError, match="'32-true', got 'bf16-mixed'"):
        gate.export(tmp_path / "gate.pt2")
