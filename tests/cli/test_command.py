"""A command is a function and a line; what is written in files and options becomes its arguments."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from PIL import Image

from oodlit.cli.main import COMMANDS, main
from oodlit.configuration import make, plan, spell_out


def greet(names: list[str], *, loud: bool = False, times: int = 1, mood: Literal["glad", "sad"] = "glad") -> int:
    """Greet people.

    Everyone is greeted in turn.

    Args:
        names: whom to greet
        loud: in capitals
        times: how often, 100 % of them;
            a second line
        mood: of the greeting
    """
    greeted.append((names, loud, times, mood))
    return 0


greeted: list[Any] = []


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "greet", f"{__name__}:greet")
    greeted.clear()


def test_registration_alone_makes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "greet Greet people" in " ".join(capsys.readouterr().out.split())
    assert main(["greet", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: oodlit greet NAMES [NAMES ...] [options] Greet people. Everyone is greeted in turn.")
    assert "--times N how often, 100 % of them; a second line (default: 1)" in text
    assert "--mood {glad,sad}" in text
    assert main(["greet", "Ann", "Bob", "--loud", "--times", "2"]) == 0
    assert greeted == [(["Ann", "Bob"], True, 2, "glad")]
    assert main(["greet"]) == 2
    assert "missing required argument: NAMES" in capsys.readouterr().err
    assert main(["greet", "Ann", "--mood=bad"]) == 2
    assert "--mood: invalid value bad; choose one of 'glad', 'sad'" in capsys.readouterr().err
    assert main(["greet", "Ann", "--names=x"]) == 2
    assert "unknown option 'names'" in capsys.readouterr().err


def test_every_command_says_in_one_short_line_what_it_does() -> None:
    for name, target in COMMANDS.items():
        module, _, function = target.partition(":")
        first = (getattr(importlib.import_module(module), function).__doc__ or "").partition("\n")[0]
        assert first.endswith("."), name
        assert len(first) < 60, name


FILE = """
backbone: resnet50
data: {class_path: DigitsBenchmark, init_args: {per_test: 2, seed: 1}}
detectors: [MSP, {class_path: KNN, init_args: {k: 5}}]
tpr: 1e-1
debug: false
fitted: null
"""


def resolved(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    (tmp_path / "run.yaml").write_text(FILE)
    assert main(["evaluate", "--config", str(tmp_path / "run.yaml"), *options, "--print_config"]) == 0
    value: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return value


@pytest.mark.parametrize(
    ("options", "detectors"),
    [
        ([], ["MSP", "KNN"]),
        (["--detectors+=Energy"], ["MSP", "KNN", "Energy"]),
        (["--detectors+=[Energy, ViM]"], ["MSP", "KNN", "Energy", "ViM"]),
        (["--detectors+={class_path: ReAct}"], ["MSP", "KNN", "ReAct"]),
        (["--detectors=[Energy]", "--detectors+=MSP"], ["Energy", "MSP"]),
        (["--detectors", "[Energy]"], ["Energy"]),
        (["--detectors", "energy"], ["Energy"]),
        (["--detectors=energy,Mahalanobis++"], ["Energy", "MahalanobisPlusPlus"]),
        (["--detectors", "energy, ViM", "--detectors", "knn"], ["Energy", "ViM", "KNN"]),
        (["--detectors", "[energy,ViM]", "--detectors=[knn]"], ["Energy", "ViM", "KNN"]),
        (["--detectors+=energy,vim"], ["MSP", "KNN", "Energy", "ViM"]),
        (["--detectors=null"], None),
    ],
)
def test_lists_of_detectors(
    options: list[str], detectors: list[str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = resolved(tmp_path, capsys, *options)["detectors"]
    paths = None if detectors is None else [f"oodlit.detectors.{name}" for name in detectors]
    assert paths == (given and [entry["class_path"] for entry in given])


@pytest.mark.parametrize("written", ["KNN, mahalanobis++", "[KNN, mahalanobis++]", '["knn,Mahalanobis++"]'])
def test_a_file_names_detectors_as_an_option_does(
    written: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(f"detectors: {written}")
    for command in (["evaluate"], ["objects", "evaluate"]):
        assert main([*command, "--config", str(tmp_path / "own.yaml"), "--print_config"]) == 0
        found = yaml.safe_load(capsys.readouterr().out)["detectors"]
        assert [entry["class_path"].rpartition(".")[2] for entry in found] == ["KNN", "MahalanobisPlusPlus"]


@pytest.mark.parametrize("command", [["evaluate"], ["objects", "evaluate"]])
def test_names_after_an_option_need_commas(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--detectors", "KNN", "MSP"]) == 2
    assert "unexpected argument: MSP; separate several values with commas" in " ".join(capsys.readouterr().err.split())


def test_what_is_not_repeated_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def data(*options: str) -> Any:
        return resolved(tmp_path, capsys, *options)["data"]["init_args"]

    assert data()["batch_size"] == 64, "defaults of a class belong to the configuration"
    assert (data("--data.init_args.seed=3")["per_test"], data("--data.init_args.seed=3")["seed"]) == (2, 3)
    assert (data("--data.seed=3")["per_test"], data("--data.seed=3")["seed"]) == (2, 3)
    assert data("--data=DigitsBenchmark")["per_test"] == 2
    assert data("--data={class_path: DigitsBenchmark, init_args: {seed: 3}}")["per_test"] == 2
    assert "per_test" in data("--data.class_path=DigitsBenchmark")
    photos = data("--data={class_path: ImageNetBenchmark, init_args: {root: shards}}")
    assert (photos["root"], photos["seed"]) == ("shards", 0)
    last = resolved(tmp_path, capsys, "--detectors+=KNN", "--detectors.k=3")["detectors"]
    assert [entry.get("init_args", {}).get("k") for entry in last] == [None, 5, 3]


def test_values_have_the_types_of_their_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = resolved(tmp_path, capsys, "--head", "3", "--max_batches=2", "--strict", "--precision=16")
    assert (given["head"], given["max_batches"], given["strict"], given["precision"]) == ("3", 2, True, "16")
    assert given["tpr"] == 0.1
    assert list(given)[:3] == ["backbone", "data", "benchmark"]
    assert "debug" not in given
    assert resolved(tmp_path, capsys, "--data.root=null")["data"]["init_args"]["root"] is None


OWN = """
backbone:
  class_path: OODModule
  init_args:
    backbone: {class_path: torch.nn.Flatten}
    transform:
      class_path: torchvision.transforms.v2.Compose
      init_args:
        transforms:
          - {class_path: torchvision.transforms.v2.Resize, init_args: {size: [8, 8]}}
          - {class_path: torchvision.transforms.RandomCrop, init_args: {size: 8}}
          - torchvision.transforms.functional.to_tensor
data:
  class_path: OODDataModule
  init_args:
    streams: [{class_path: shard_stream, init_args: {shards: s, role: ID, cache: {attempts: 2}}}]
detectors: [{class_path: ReAct, init_args: {then: Energy}}]
"""


NAMED = """
backbone: resnet18
data: DigitsBenchmark
detectors: {one: ASH, two: {class_path: ASH, init_args: {variant: p, percentile: 60}}}
"""


def test_one_kind_of_detector_may_come_twice_under_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message for two of one name says so."""
    option = "--detectors={one: ASH, two: {class_path: ASH, init_args: {variant: p}}}"
    for options, percentile in (([option], 90.0), ([option, "--detectors.two.percentile=60"], 60.0)):
        given = resolved(tmp_path, capsys, *options)["detectors"]
        assert {name: entry["class_path"] for name, entry in given.items()} == dict.fromkeys(
            ("one", "two"), "oodlit.detectors.ASH"
        )
        settings = given["two"]["init_args"]
        assert (settings["variant"], settings["percentile"]) == ("p", percentile)


@pytest.mark.parametrize("text", [FILE, OWN, NAMED])
def test_what_was_resolved_resolves_to_itself(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert main(["evaluate", "--config", str(tmp_path / "run.yaml"), "--print_config"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(first)
    assert main(["evaluate", "--config", str(tmp_path / "again.yaml"), "--print_config"]) == 0
    assert capsys.readouterr().out == first


def test_objects_are_made_from_the_inside_out() -> None:
    given = yaml.safe_load(OWN)["backbone"]["init_args"]["transform"]
    again = spell_out(plan(given, Callable[..., Any], "transform"))
    transform = make(plan(again, Callable[..., Any], "transform"))
    assert [type(step).__name__ for step in transform.transforms] == ["Resize", "RandomCrop", "function"]
    assert transform(Image.new("RGB", (20, 10))).shape == (3, 8, 8)
