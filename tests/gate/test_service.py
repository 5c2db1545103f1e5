"""Gates of every detector of the digits demo in another process, and exported gates in one without oodlit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import Compose, Resize

from oodlit.cli.demos.digits import SETTINGS, trained_network
from oodlit.cli.running.prediction import predict_and_print
from oodlit.datamodules import DigitsBenchmark, OODDataModule
from oodlit.datamodules.benchmarks.digits import digits_transform
from oodlit.datamodules.thinning import thinned
from oodlit.detectors import detectors
from oodlit.detectors.contract.every import every_detector
from oodlit.module import OODModule
from oodlit.roles import Role
from tests.callbacks.processes import check_ended, run_function
from tests.detectors.support import negative_words
from tests.gate import service_script

HERE = Path(__file__).parent
EXPORTED = (
    *("act_sub", "cad_ref", "combined", "knn", "mahalanobis", "mcm", "msp", "neg_label", "nn_guide", "ora", "ras"),
    *("react", "sirc", "vim", "wei_per"),
)
AS_ONNX = ("combined", "knn", "neg_label", "sirc")
REFUSED = ("odin", "branching")
pytestmark = pytest.mark.integration
Report = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits demo with a short training, a tenth of its shifted images and a few of each unit test."""
    root = tmp_path_factory.mktemp("service")
    # Pictures of 8 x 8 pixels stay as they are; those of the fingerprint become small, which is quick.
    transform = Compose([Resize((8, 8)), *digits_transform().transforms])
    demo = DigitsBenchmark(root / "shards", per_test=4, transform=transform)
    network = trained_network(demo, seed=0, epochs=4, accelerator="cpu")
    torch.save(network.state_dict(), root / "weights.pt")
    streams = [thinned(stream, 300) if stream.role is Role.SHIFT else stream for stream in demo.streams]
    words = dict.fromkeys(("neg_label", "csp"), negative_words(root / "words.safetensors", width=64))
    others = {"mc_dropout": {"passes": 3}, "gl_mcm": {"layer": "feature_map"}}
    chosen = every_detector(SETTINGS | words | others)[0]
    predict_and_print(
        OODModule(network, head="head", transform=transform, name="digits network"),
        OODDataModule(streams),
        chosen,
        out=root / "run",
        trainer={"accelerator": "cpu", "devices": 1},
    )
    (root / "programs").mkdir()
    return root


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    where = (folder / name for name in ("run", "shards", "weights.pt", "programs"))
    exported = [*EXPORTED, *REFUSED]
    done = run_function(service_script.main, *where, exported, folder=folder / "logs", each=[{}], timeout=600)
    check_ended(done)
    found: Report = json.loads(done[0].stdout)
    return found


def test_every_image_gets_the_score_and_the_decision_of_the_run(report: Report) -> None:
    assert set(report) == {*detectors(), "branching"}
    for name in detectors():
        of = report[name]
        assert of["images"] == 506 + 533 + 300 + 17 * 4, name
        assert of["flips"] == 0, name
        assert of["apart"] < 1e-4, (name, of["apart"])
        assert of["classes"], name


def test_saved_gates_say_the_same(report: Report) -> None:
    saved = [of["saved"] for of in report.values() if "saved" in of]
    assert saved == [True] * 7


def test_exported_gates_say_the_same_without_oodlit(report: Report, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "program_script.py"), str(folder / "programs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Report = json.loads(done.stdout)
    assert set(found) == {*EXPORTED, *(f"{name}.onnx" for name in AS_ONNX)}
    for name in EXPORTED:
        of = found[name]
        told = report[name]["told"]
        assert of.keys() == {*told, "alone"}, name
        assert of["accepted"] == told["accepted"], name
        assert of["class_index"] == told["class_index"], name
        assert of["score"] == pytest.approx(told["score"], rel=1e-5, abs=1e-9), name
        assert of["probability"] == pytest.approx(told["probability"], rel=1e-5), name
        assert of["alone"] == pytest.approx(told["score"][0], rel=1e-5, abs=1e-9), name
    for name in AS_ONNX:
        of, told = found[f"{name}.onnx"], report[name]["told"]
        assert of["accepted"] == told["accepted"], name
        assert of["class_index"] == told["class_index"], name
        assert of["score"] == pytest.approx(told["score"], rel=1e-4, abs=1e-6), name
        assert of["probability"] == pytest.approx(told["probability"], rel=1e-4), name
        assert of["alone"] == pytest.approx(told["score"][0], rel=1e-4, abs=1e-6), name


def test_what_cannot_be_exported_is_said_in_a_line(report: Report) -> None:
    assert "passes only logits and features to the detector, but ODIN" in report["odin"]["not_exported"]
    assert "also reads images, model; " in report["odin"]["not_exported"]
    assert "cannot be exported for all batch sizes" in report["branching"]["not_exported"]
    assert all("\n" not in report[name]["not_exported"] for name in REFUSED)
