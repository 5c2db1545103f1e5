"""Tensors of other types, copies of a gate, and edited records."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from oodlit import Gate, OODModule
from oodlit.detectors import MSP
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from tests.gate.support import TinyNetwork, digits, run


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    folder = tmp_path_factory.mktemp("gate")
    data = digits(folder / "shards", max_images=20)
    run(OODModule(TinyNetwork(), transform=data.transform), data, [MSP()], folder / "run")
    return Gate.load(folder / "run", model=TinyNetwork())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_of_any_floating_point_type_are_converted(gate: Gate, dtype: torch.dtype) -> None:
    images = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8).to(dtype)
    assert gate(images) == gate(images.float())
    assert gate([images[0], images[1].float()]) == gate(images.float())
    with pytest.raises(InvalidArgumentError, match="expected a floating-point tensor"):
        gate(images.to(torch.uint8))
    with pytest.raises(InvalidArgumentError, match="expected finite values"):
        gate(torch.full((3, 8, 8), 1e300, dtype=torch.float64))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused_with_a_way_out(gate: Gate, copied: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"gate\.save\(folder\), and then Gate\.load\(folder\)"):
        copied(gate)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["value", "cut", "ci_low", "ci_high"])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "much"])
def test_a_threshold_that_decides_nothing_is_refused(gate: Gate, tmp_path: Path, name: str, number: str) -> None:
    gate.save(tmp_path / "gate")
    file = tmp_path / "gate" / "gate.json"
    record = json.loads(file.read_text())
    record["threshold"][name] = number
    file.write_text(json.dumps(record))
    if name.startswith("ci") and "inf" in number:  # an interval may be open
        assert Gate.load(tmp_path / "gate", model=TinyNetwork()).threshold.cut == gate.threshold.cut
        return
    with pytest.raises(DataError, match=r"gate\.json: (the values of the threshold contradict|Expected `float`)"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())


def test_a_gate_without_a_finite_threshold_is_not_saved(gate: Gate, tmp_path: Path) -> None:
    threshold = replace(gate.threshold, value=float("-inf"), cut=float("-inf"))
    other = Gate(gate.module, gate.detector, structs.replace(gate.record, threshold=threshold))
    with pytest.raises(InvalidArgumentError, match=r"Gate\.save: expected a finite threshold, got -inf"):
        other.save(tmp_path / "gate")


CHANGED = "changed since the gate was saved"
SHAPES = ([2**40, 2**40, 2], [3, -8, 8], [3, 0, 8], [], [2**70])  # of no image


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (("threshold", "cut"), "1e9", "the values of the threshold contradict"),
        (("threshold", "share"), 7.0, "the values of the threshold contradict"),
        (("threshold", "share"), float("nan"), "the values of the threshold contradict"),
        (("threshold", "confidence"), 0.0, "the values of the threshold contradict"),
        (("threshold", "kind"), "auroc", "the values of the threshold contradict"),
        (("threshold", "num_id_refused"), 10**6, "the values of the threshold contradict"),
        (("threshold", "num_id"), -5, "the values of the threshold contradict"),
        (("detector",), "knn", "unknown fitted detector"),
        (("backbone", "config"), "a: [", r"entry config of run\.json or gate\.json is not valid YAML"),
        (("backbone", "config"), "- 1", "expected a mapping of options, got list"),
        (("backbone", "arguments"), {"head": None}, "to contain backbone and weights, got head; restore"),
        (("backbone", "arguments"), {"backbone": None}, "to contain backbone and weights, got backbone; restore"),
        (("threshold", "share"), 0.5, rf"gate\.json: threshold\.share {CHANGED}"),
        (("threshold", "num_images"), 7, rf"gate\.json: threshold\.num_images {CHANGED}"),
        (("precision",), "bf16-mixed", rf"gate\.json: precision {CHANGED}"),
        (("fit",), "", rf"gate\.json: fit {CHANGED}"),
        (("class_names",), ["b", "a"], rf"gate\.json: class_names {CHANGED}"),
        *((("backbone", "input_shape"), shape, "input_shape") for shape in SHAPES),
    ],
)
def test_a_record_that_contradicts_itself_or_was_edited_is_an_error(
    gate: Gate, tmp_path: Path, place: tuple[str, ...], value: object, match: str
) -> None:
    gate.save(tmp_path / "gate")
    file = tmp_path / "gate" / "gate.json"
    record = json.loads(file.read_text())
    (record if len(place) == 1 else record[place[0]])[place[-1]] = value
    file.write_text(json.dumps(record))
    with pytest.raises(UnknownNameError if place == ("detector",) else DataError, match=match):
        Gate.load(tmp_path / "gate", model=TinyNetwork())


def test_an_edited_threshold_is_named(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    file = tmp_path / "gate" / "gate.json"
    record = json.loads(file.read_text())
    record["threshold"] |= dict.fromkeys(("value", "cut"), repr(gate.threshold.value - 1))
    file.write_text(json.dumps(record, sort_keys=True))
    with pytest.raises(DataError, match=r"json: threshold\.cut, threshold\.value changed since .*; restore the file"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (torch.rand(2, 3, 8, 8).to_sparse(), "sparse_coo, cpu.; pass a dense tensor"),
        (torch.rand(2, 3, 8, 8, device="meta"), "sparse, nested or meta tensor .*, meta.; pass a dense tensor"),
        ([torch.rand(3, 8, 8).to_sparse()], "image 0: .*sparse_coo, cpu"),
        (torch.tensor(1.0), "got torch.float32 of shape \\(\\)"),
    ],
)
def test_tensors_without_pixels_are_refused(gate: Gate, images: object, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        gate(images)


def test_keys_are_one_name_per_image(gate: Gate) -> None:
    images = torch.rand(2, 3, 8, 8)
    assert gate(images, keys=("a", "b")) == gate(images, keys=["a", "b"])
    with pytest.raises(InvalidArgumentError, match="expected a list of keys, got 'ab'"):
        gate(images, keys="ab")


@pytest.mark.parametrize("content", ["[" * 2000, "[" * 200 + "]" * 200, '{"format": 1e999}', '{"format": 1}', "\x00"])
def test_damaged_records_are_errors(tmp_path: Path, content: str) -> None:
    (tmp_path / "gate.json").write_text(content)
    with pytest.raises((DataError, InvalidArgumentError), match=r"gate\.json: |expected a gate in format 1, got"):
        Gate.load(tmp_path)
