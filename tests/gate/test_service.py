"""Gates of every detector of the digits demo in a fresh process, and exported gates in one without oodlit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oodlit.cli.demos.detectors import every_detector
from oodlit.cli.demos.digits import SETTINGS, _trained_network
from oodlit.cli.run import predict_and_print
from oodlit.datamodules import DigitsBenchmark
from oodlit.detectors import detectors
from oodlit.module import OODModule

HERE = Path(__file__).parent
NOT_TRACED = {"cad_ref", "knn", "nn_guide", "wei_per"}
"""What they compute depends on values, or on the number of images."""
READ_MORE = {"lard", "mc_dropout", "odin", "rank_feat"}
Report = dict[str, dict[str, Any]]


def _script(name: str, *words: object) -> Report:
    done = subprocess.run(
        [sys.executable, str(HERE / name), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: Report = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits demo with a short training, a tenth of its shifted images and a few of each unit test."""
    root = tmp_path_factory.mktemp("service")
    data = DigitsBenchmark(root / "shards", per_test=4)
    network = _trained_network(data, seed=0, epochs=4, accelerator="cpu")
    torch.save(network.state_dict(), root / "weights.pt")
    module = OODModule(network, head="head", transform=data.transform, name="digits network")
    predict_and_print(
        module, data, every_detector(SETTINGS)[0], out=root / "run", trainer={"accelerator": "cpu", "devices": 1}
    )
    (root / "programs").mkdir()
    return root


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return _script("service_script.py", folder / "run", folder / "shards", folder / "weights.pt", folder / "programs")


def test_every_image_gets_the_score_and_the_decision_of_the_run(report: Report) -> None:
    assert set(report) == set(detectors())
    for name, of in report.items():
        assert of["images"] > 4000, name
        assert of["flips"] == 0, name
        assert of["apart"] < 1e-4, (name, of["apart"])
        assert of["classes"], name


def test_saved_gates_say_the_same(report: Report) -> None:
    saved = [of["saved"] for of in report.values() if "saved" in of]
    assert saved == [True] * 6


def test_exported_gates_say_the_same_without_oodlit(report: Report, folder: Path) -> None:
    assert {name for name, of in report.items() if "not_exported" in of} == NOT_TRACED | READ_MORE
    for name in READ_MORE:
        assert "which an exported program does not have; export a gate of" in report[name]["not_exported"]
    for name in NOT_TRACED:
        assert "cannot be traced for batches of any size and any values" in report[name]["not_exported"]
    found = _script("program_script.py", folder / "programs")
    assert len(found) == len(report) - len(NOT_TRACED) - len(READ_MORE) > 25
    for name, of in found.items():
        told = report[name]["told"]
        assert of["accepted"] == told["accepted"], name
        assert of["class_index"] == told["class_index"], name
        assert of["score"] == pytest.approx(told["score"], rel=1e-5, abs=1e-9), name
        assert of["probability"] == pytest.approx(told["probability"], rel=1e-5), name
        assert of["alone"] == pytest.approx(told["score"][0], rel=1e-5, abs=1e-9), name
