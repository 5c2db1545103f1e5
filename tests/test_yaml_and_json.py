"""Files of the user in YAML and JSON: a key that occurs twice is an error, and aliases are bounded."""

from pathlib import Path

import pytest
import yaml

from oodlit.base.json_files import loads, parse_json
from oodlit.base.yaml_files import MAX_CHARACTERS, load_yaml
from oodlit.cli.main import main
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects.files.annotations import read_annotations
from oodlit.recorded.from_arrays import read_description
from oodlit.results.limits import read_limits
from oodlit.runs.journal import Journal

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text", ["tpr: 0.9\nrule: attained\ntpr: 0.5", "{a: 1, a: 1}", "x:\n  - {far: 1, near: 2, far: 3}", '"a": 1\na: 2']
)
def test_a_key_that_occurs_twice_is_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="occurs twice"):
        load_yaml(text)


def test_everything_else_is_read_as_before() -> None:
    text = "a: &x {b: 1, c: [1, 2.5, null, yes]}\nd: *x\ne:\n  <<: *x\n  b: 2\n1: one\n'1': text"
    assert load_yaml(text) == yaml.safe_load(text)
    assert load_yaml("") is None


CHAIN = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 150))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a {b: *a}", "contains itself"),
        ("[" * 120 + "]" * 120, "at most 100 nested"),
        (CHAIN, "at most 100 nested"),
        ("day: 2026-99-99", "a date or number cannot be read"),
        ("a: !!float much", "a date or number cannot be read"),
        ("a: !!timestamp b", "a date or number cannot be read"),
    ],
)
def test_values_that_later_code_cannot_walk_or_convert_are_errors(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        load_yaml(text)
    (tmp_path / "run.yaml").write_text(f"data:\n  {text}" if text.startswith("[") else text)
    assert main(["evaluate", "--config", str(tmp_path / "run.yaml")]) == 2
    with pytest.raises(InvalidArgumentError):
        read_limits(tmp_path / "run.yaml")


@pytest.mark.parametrize("depth", [120, 900, 50_000])
def test_deep_json_is_an_error_everywhere(depth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[" * depth + "]" * depth
    with pytest.raises(DataError, match=r"nested lists and objects|not valid JSON"):
        parse_json(text.encode(), object, where="file")
    assert parse_json(("[" * 100 + "]" * 100).encode(), list, where="file")
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError):
        Journal(tmp_path, ".json").read(tmp_path / "run.json")
    assert main(["evaluate", "--backbone", "resnet50", "--detectors", text]) == 2
    assert "Error]" not in capsys.readouterr().err


@pytest.mark.parametrize("text", [BOMB, "[" * 50_000, "a: &a [*a, *a]\nb: [", " " * (MAX_CHARACTERS + 1)])
def test_what_would_grow_without_bound_is_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"c": 1, "d": 2, "c": 3}}]'])
def test_a_name_that_occurs_twice_in_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        loads(text)
    with pytest.raises(DataError, match="occurs twice"):
        parse_json(text.encode(), object, where="file")


def test_files_of_limits_features_annotations_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits, features, boxes = tmp_path / "limits.yaml", tmp_path / "features.yaml", tmp_path / "boxes.json"
    limits.write_text("fail_if: ['msp: auroc < 0.5']\nfail_if: ['knn: auroc < 0.5']\n")
    with pytest.raises(InvalidArgumentError, match="'fail_if' occurs twice"):
        read_limits(limits)
    features.write_text("id: a.npz\nood: {far: b.npz, far: c.npz}\n")
    with pytest.raises(DataError, match="'far' occurs twice"):
        read_description(features)
    boxes.write_text('{"images": [], "annotations": [], "categories": [], "images": []}')
    with pytest.raises(DataError, match="'images' occurs twice"):
        read_annotations(boxes, dataset="near")
    options = tmp_path / "run.yaml"
    options.write_text("tpr: 0.9\nbackbone: resnet18\ntpr: 0.5\n")
    assert main(["evaluate", "--config", str(options)]) == 2
    assert "'tpr' occurs twice" in capsys.readouterr().err
    assert main(["evaluate", "--detectors", "[{class_path: KNN, init_args: {k: 5, k: 50}}]"]) == 2
    assert "'k' occurs twice" in capsys.readouterr().err
