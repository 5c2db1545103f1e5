"""A saved gate opens nothing but its own folder, and the folder of a run is enough from any working folder."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch

from oodlit import Gate, OODModule
from oodlit.cli.main import main
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP
from tests.callbacks.processes import check_ended, run_function
from tests.gate.support import digits, run
from tests.gate.test_made_again import CONFIG, NETWORK

FILE = "checkpoints/net.pt"


def print_scores(folder: str, path: list[str], *gates: str) -> None:
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    os.chdir(folder)
    sys.path[:0] = path
    image = torch.linspace(-1, 1, 192).view(1, 3, 8, 8)
    print(json.dumps({gate: Gate.load(gate)(image)[0].score for gate in gates}))


def scores_elsewhere(folder: Path, *gates: str, path: Sequence[str] = ()) -> dict[str, float]:
    """Scores of one image by gates that another process loads in an empty working folder."""
    folder.mkdir()
    logs = folder.with_suffix(".logs")
    ended = run_function(print_scores, str(folder), [*path], *gates, folder=logs, each=[{}], timeout=300)
    check_ended(ended)
    found: dict[str, float] = json.loads(ended[0].stdout.splitlines()[-1])
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    return tmp_path


@pytest.mark.integration
def test_gate_and_run_of_a_configuration_need_no_checkpoint_of_the_working_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "made_again_network", raising=False)
    Path("made_again_network.py").write_text(NETWORK)
    with monkeypatch.context() as inside:
        inside.syspath_prepend(str(project))
        import made_again_network  # type: ignore[import-not-found]

        torch.save(made_again_network.Network(5).state_dict(), FILE)
    monkeypatch.delitem(sys.modules, "made_again_network")
    Path("run.yaml").write_text(CONFIG.replace("    head: head", f"    head: head\n    weights: {FILE}"))
    assert main(["evaluate", "--config", "run.yaml"]) == 0, capsys.readouterr().err
    gate = Gate.load("results")
    gate.save("gate")
    score = gate(torch.linspace(-1, 1, 192).view(1, 3, 8, 8))[0].score
    assert scores_elsewhere(project / "one", "../results") == {"../results": pytest.approx(score)}
    Path(FILE).unlink()
    found = scores_elsewhere(project / "two", "../gate", str(project / "gate"), path=[str(project)])
    assert list(found.values()) == [pytest.approx(score)] * 2


@pytest.mark.integration
def test_gate_and_run_with_files_and_folders_of_weights(project: Path) -> None:
    network = timm.create_model("test_resnet", pretrained=False, num_classes=7)
    torch.save(network.state_dict(), FILE)
    about = {"architecture": "test_resnet", "num_classes": 7}
    (project / "checkpoints" / "config.json").write_text(json.dumps(about))
    data: OODDataModule = digits(project / "data", max_images=20)
    run(OODModule("local-dir:checkpoints", weights=FILE, transform=data.transform), data, [MSP()], project / "results")
    gate = Gate.load("results")
    gate.save("gate")
    score = gate(torch.linspace(-1, 1, 192).view(1, 3, 8, 8))[0].score
    assert scores_elsewhere(project / "one", "../results") == {"../results": pytest.approx(score)}
    for file in (project / "checkpoints").iterdir():
        file.unlink()
    assert scores_elsewhere(project / "two", "../gate") == {"../gate": pytest.approx(score)}
    again = Gate.load("gate")
    again.save("copy")
    assert (project / "copy" / "config.json").read_bytes() == (project / "gate" / "config.json").read_bytes()
