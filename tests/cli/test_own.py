"""A run of one's own network, transform and shards from a file: dotted paths, short names, roles, folders."""

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from oodlit.cli.main import main
from oodlit.datamodules import ShardSource, Stream
from oodlit.detectors.contract.every import every_detector
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule
from oodlit.results import Results
from oodlit.results.files import storage
from oodlit.roles import Role

MODULE = """
import torch
from torch import nn
from torchvision import transforms

class Net(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.fc = nn.Linear(3 * 8 * 8, 2)
    def forward(self, images):
        return self.fc(images.flatten(1))

def to_tensor(image):
    return transforms.functional.to_tensor(image)

def make_transform(size: int):
    return transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
"""

RUN = """
backbone:
  class_path: OODModule
  init_args:
    backbone: {class_path: own_of_test.Net}
    transform: {class_path: torchvision.transforms.ToTensor}
data:
  class_path: OODDataModule
  init_args:
    streams:
      - {class_path: shard_stream, init_args: {shards: shards/my_val}}
      - {class_path: shard_stream, init_args: {shards: shards/my_ood}}
detectors: [MSP]
accelerator: cpu
"""


SETS = (("my_train", "train", ("cat", "dog")), ("my_val", "id", ("cat", "dog")), ("my_ood", "ood", ("ant", "bee")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of an ID set and an OOD set with two classes each, and a module of one's own."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    for name, role, classes in SETS:
        for kind in classes:
            (folder / name / kind).mkdir(parents=True)
            for index in range(6):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / kind / f"{index}.png")
        shards = str(folder / "shards" / name)
        assert main(["shards", "build", name, str(folder / name), "--out", shards, "--role", role]) == 0
    (folder / "own_of_test.py").write_text(MODULE)
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Evaluate the configuration above, changed, in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def evaluate(change: Any = None, *options: str) -> int:
        config = copy.deepcopy(yaml.safe_load(RUN))
        if change:
            change(config)
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(config))
        return main(["evaluate", "--config", str(file), "--out", str(tmp_path / "out"), *options])

    yield evaluate
    sys.modules.pop("own_of_test", None)


@pytest.mark.parametrize(
    "transform",
    [
        {"class_path": "torchvision.transforms.ToTensor"},
        {
            "class_path": "torchvision.transforms.Compose",
            "init_args": {
                "transforms": [
                    {"class_path": "torchvision.transforms.Resize", "init_args": {"size": 8}},
                    {"class_path": "torchvision.transforms.ToTensor"},
                ]
            },
        },
        "own_of_test.to_tensor",
        {"class_path": "own_of_test.make_transform", "init_args": {"size": 8}},
    ],
)
def test_transforms_from_a_file(transform: object, run: Any, tmp_path: Path) -> None:
    assert run(lambda config: config["backbone"]["init_args"].update(transform=transform)) == 0
    results = Results.load(tmp_path / "out")
    assert results.run.counts == {"my_val": 12, "my_ood": 12}
    assert results.dataset("my_ood").class_names == ("ant", "bee")


def test_a_network_of_a_file_is_made_faster_by_the_options(run: Any, tmp_path: Path) -> None:
    assert run(None, "--channels_last") == 0
    assert Results.load(tmp_path / "out").run.acceleration.channels_last is True


def test_missing_transform_is_reported_in_the_words_of_the_file(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda config: config["backbone"]["init_args"].pop("transform")) == 2
    assert "`transform: {class_path: ...}` below init_args of OODModule" in capsys.readouterr().err


def test_streams_by_hand_take_roles_as_shown_and_class_names_of_the_manifest(run: Any, tmp_path: Path) -> None:
    def change(config: Any) -> None:
        config["data"]["init_args"]["streams"] = [
            {
                "class_path": "Stream",
                "init_args": {
                    "name": name,
                    "role": role,
                    "source": {"class_path": "ShardSource", "init_args": {"shards": f"shards/{name}"}},
                },
            }
            for name, role in (("my_val", "id"), ("my_ood", "ood"))
        ]

    assert run(change) == 0
    results = Results.load(tmp_path / "out")
    assert results.dataset("my_ood").class_names == ("ant", "bee")
    again = tmp_path / "again.yaml"
    again.write_text(results.run.config)
    assert main(["evaluate", "--config", str(again), "--out", str(tmp_path / "again")]) == 0
    assert Results.load(tmp_path / "again").datasets == results.datasets


def test_class_names_of_a_manifest_stay_with_their_kind_of_role(folder: Path) -> None:
    """Names of labels are no names of OOD classes."""
    shards = folder / "shards"
    assert Stream("a", Role.OOD, ShardSource(shards / "my_ood")).class_names == ("ant", "bee")
    assert Stream("a", Role.TRAIN, ShardSource(shards / "my_val")).class_names == ("cat", "dog")
    assert Stream("a", Role.OOD, ShardSource(shards / "my_val")).class_names == ()
    assert Stream("a", Role.OOD, ShardSource(shards / "my_ood"), ("x", "y")).class_names == ("x", "y")


def _streams(value: Any) -> Any:
    return lambda config: config["data"]["init_args"].update(streams=value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(zapp=1), "unknown option 'zapp'"),
        (lambda c: c["backbone"].update(class_path="own_of_test.Nett"), "has no attribute 'Nett'"),
        (lambda c: c["backbone"].update(class_path="own_of_tset.Net"), "No module named 'own_of_tset'"),
        (
            lambda c: c.update(backbone={"class_path": "own_of_test.Net", "init_args": {"widht": 1}}),
            "unknown argument 'widht' of own_of_test.Net; did you mean 'width'",
        ),
        (
            lambda c: c.update(backbone={"class_path": "own_of_test.Net", "init_args": {"width": "x"}}),
            "--backbone.width: expected int, got x",
        ),
        (
            lambda c: c.update(backbone={"class_path": "own_of_test.Net", "init_arg": {}}),
            "'init_arg' beside class_path own_of_test.Net; did you mean 'init_args'",
        ),
        (lambda c: c.update(backbone=3), "--backbone: expected str or class_path and init_args, got 3"),
        (
            lambda c: c.update(detectors=5),
            "--detectors: expected 'all' or list of Detector or mapping of Detector, got 5",
        ),
        (_streams([{"class_path": "shard_strem"}]), "'shard_strem'; did you mean 'shard_stream'"),
        (
            _streams([{"class_path": "shard_stream", "init_args": {"shards": "s", "role": "odd"}}]),
            "unknown role 'odd'; did you mean 'ood'",
        ),
        (
            lambda c: c["data"]["init_args"].update(transform="own_of_test.nope"),
            "--data.transform: cannot import own_of_test.nope (module 'own_of_test' has no",
        ),
    ],
)
def test_mistakes_in_the_file_are_one_line(
    change: Any, message: str, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(change) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "Union" not in error


def test_out_is_never_somebody_elses_folder(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("keep me")
    assert run() == 2
    assert "contains 'thesis.txt', which oodlit did not write" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert run(None, "--out", str(tmp_path / "out" / "thesis.txt")) == 2
    assert "thesis.txt: expected a folder, got a file; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["table.csv", "scores.parquet", "report.html"])
def test_parts_of_results_without_a_record_are_not_replaced(
    name: str, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("keep me")
    (tmp_path / "out" / ".hidden").touch()
    assert run() == 2
    error = capsys.readouterr().err
    assert f"contains {name} but no run.json" in error
    assert error.count("\n") == 1
    assert (tmp_path / "out" / name).read_text() == "keep me"


def test_earlier_results_are_replaced_and_that_is_reported(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert "will be replaced" not in capsys.readouterr().out
    assert run(lambda config: config.update(detectors=["Energy"])) == 0
    text = "has results of an earlier run; this run replaces them, unless the earlier run had the same settings"
    assert text in " ".join(capsys.readouterr().out.split())
    assert Results.load(tmp_path / "out").detectors == ("energy",)
    assert run(lambda config: config.update(detectors=["Energy"]), "--again") == 0  # the settings do not matter
    assert "this run replaces them\n" in capsys.readouterr().out


def test_a_run_that_was_killed_resumes_and_that_is_reported(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(storage, "write", _killed)
        assert run() != 0
    capsys.readouterr()
    assert run() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"found an unfinished run \((\d+) of \1 data sets done\)", out)
    assert "will be replaced" not in out


def _killed(*_: Any, **__: Any) -> None:
    raise OSError("killed")


def test_a_run_that_has_come_to_its_end_is_not_repeated(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    first, written = capsys.readouterr().out, (tmp_path / "out" / "run.json").stat().st_mtime_ns
    assert run() == 0
    second = capsys.readouterr().out
    assert "pass --again to repeat it" in " ".join(second.split())
    assert (tmp_path / "out" / "run.json").stat().st_mtime_ns == written
    assert [line for line in second.splitlines() if line.startswith("MSP")] == [
        line for line in first.splitlines() if line.startswith("MSP")
    ]
    assert run(lambda config: config.update(again=True)) == 0
    assert (tmp_path / "out" / "run.json").stat().st_mtime_ns > written


def test_without_detectors_all_that_cost_no_extra_pass_are_used(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = {name for name, one in every_detector()[0].items() if one.extra_passes}
    assert run(lambda config: config.pop("detectors")) == 0
    some = Results.load(tmp_path / "out")
    said = " ".join(capsys.readouterr().out.split())
    assert {"msp", "energy", "max_logit"} <= set(some.detectors)
    assert not passes & set(some.detectors)
    assert passes <= set(some.run.not_applicable)
    assert some.run.not_applicable["odin"] == "costs 2 extra forward passes per image"
    assert "using all detectors that need no extra forward passes; --detectors all adds AdaSCALE, " in said
    assert run(lambda config: config.pop("detectors"), "--dry_run") == 0
    assert "Not used: AdaSCALE, " in " ".join(capsys.readouterr().out.split())
    assert run(None, "--detectors", "all", "--again") == 0
    every = Results.load(tmp_path / "out")
    assert set(some.detectors) < set(every.detectors)
    assert "odin" in every.detectors
    assert not any("extra forward pass" in reason for reason in every.run.not_applicable.values())
    assert "extra forward passes; --detectors all" not in " ".join(capsys.readouterr().out.split())
    assert run(None, "--detectors", "al") == 2
    assert "'al'" in capsys.readouterr().err


def test_a_network_of_a_paper_has_its_weights_size_and_crop(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def module(self: OODModule, **arguments: Any) -> None:
        given.update(arguments)
        raise InvalidArgumentError("enough")

    monkeypatch.setattr(OODModule, "__init__", module)
    assert run(lambda config: config.update(backbone="ninco:ResNet50")) == 2
    assert given["backbone"] == "resnet50.a1_in1k"
    assert [type(step).__name__ for step in given["transform"].transforms[:2]] == ["Resize", "CenterCrop"]
    assert (given["transform"].transforms[0].size, given["transform"].transforms[1].size) == (235, (224, 224))
    capsys.readouterr()
    assert run(lambda config: config.update(backbone="ninco:ResNet-50")) == 2
    assert "did you mean 'ResNet50'" in " ".join(capsys.readouterr().err.split())


def test_fitted_detectors_are_used_again(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def with_train(config: Any) -> None:
        streams = config["data"]["init_args"]["streams"]
        streams.append({"class_path": "shard_stream", "init_args": {"shards": "shards/my_train"}})
        config["detectors"] = [{"class_path": "KNN", "init_args": {"k": 2}}]

    assert run(with_train, "--seed", "3") == 0
    first = Results.load(tmp_path / "out")
    fitted = tmp_path / "fitted"
    (tmp_path / "out" / "fitted").rename(fitted)
    assert run(None, "--fitted", str(fitted)) == 2
    assert "not both" in capsys.readouterr().err
    capsys.readouterr()
    assert run(lambda config: config.pop("detectors"), "--fitted", str(fitted), "--seed", "3") == 0
    again = Results.load(tmp_path / "out")
    assert "my_train" not in again.run.counts
    assert again.detectors == first.detectors == ("knn",)
    kept = first.scores[first.scores["dataset"] != "my_train"].reset_index(drop=True)
    assert kept["knn"].tolist() == again.scores["knn"].tolist()
