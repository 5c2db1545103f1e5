"""A gate gives for an image, in whatever form, what the run gave; and no gate is made of anything else than the run."""

import io
import json
import math
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import Compose, ToTensor

from oodlit import Gate, OODModule, Results, Role
from oodlit.datamodules import DatasetSource, OODDataModule, Stream
from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import (
    DataError,
    FingerprintError,
    InvalidArgumentError,
    MissingExtraError,
    NonFiniteScoreError,
    UnknownNameError,
)
from oodlit.gate.inputs import batches_of
from oodlit.gate.rebuilding import precision_context
from tests.gate.support import TinyNetwork, run

NAMES = ("msp", "mahalanobis", "mc_dropout")


def test_verdicts_are_those_of_the_run(folder: Path, pictures: dict[str, Image.Image]) -> None:
    results = Results.load(folder)
    rows = results.scores.set_index("key").loc[list(pictures)]
    names = results.dataset("digits_val").class_names
    for name in NAMES:
        gate = Gate.load(folder, detector=name, model=TinyNetwork())
        verdicts = gate(list(pictures.values()), keys=list(pictures))
        assert [v.score for v in verdicts] == pytest.approx(rows[name].tolist(), rel=1e-5, abs=1e-6)
        assert [v.accepted for v in verdicts] == (rows[name] >= results.threshold(name)).tolist()
        assert [v.class_index for v in verdicts] == rows["prediction"].tolist()
        assert [v.class_name for v in verdicts] == [names[index] for index in rows["prediction"]]
        assert {v.threshold for v in verdicts} == {results.threshold(name)}
        assert all(1 / 7 <= v.probability <= 1 for v in verdicts)


def test_an_image_gets_one_verdict_in_whatever_form_and_company(gate: Gate, pictures: dict[str, Image.Image]) -> None:
    images = list(pictures.values())
    many = gate(images)
    assert {v.accepted for v in many} == {True, False}
    assert gate.module.transform is not None
    tensors = [gate.module.transform(image) for image in images]
    file = io.BytesIO()
    images[0].save(file, "PNG")
    assert gate(file.getvalue()) == gate(images[0]) == gate([images[0]]) == gate(tensors[0])
    assert gate(torch.stack(tensors)) == gate(tensors) == gate({"image": torch.stack(tensors)}) == many
    for alone, among in zip((gate(image)[0] for image in images), many, strict=True):
        assert (alone.accepted, alone.class_index) == (among.accepted, among.class_index)
        assert alone.score == pytest.approx(among.score, rel=1e-5)
    assert gate([]) == []
    grey = images[0].convert("L")
    assert gate(grey)[0] == gate(grey.convert("RGB"))[0]


def test_keys_decide_the_masks_of_dropout(folder: Path, pictures: dict[str, Image.Image]) -> None:
    gate = Gate.load(folder, detector="mc_dropout", model=TinyNetwork())
    image = next(iter(pictures.values()))
    assert gate(image, keys=["a"]) == gate(image, keys=["a"]) != gate(image, keys=["b"])
    assert gate(image) == gate(image)
    tensor = gate.module.transform(image)  # type: ignore[misc]
    assert gate({"image": tensor[None], "key": ["a"]}) == gate(image, keys=["a"])


def test_another_network_is_refused(folder: Path) -> None:
    network = TinyNetwork()
    with torch.no_grad():
        network.head.bias[3] += 1e-6
    with pytest.raises(FingerprintError, match=r"or transform: the state of the weights differs"):
        Gate.load(folder, detector="mahalanobis", model=network)
    with pytest.raises(FingerprintError, match="the transform differs"):
        Gate.load(folder, detector="msp", model=TinyNetwork(), transform=Compose([ToTensor()]))
    other = OODModule(TinyNetwork(), output=None, head="head", features_only=None)
    assert Gate.load(folder, detector="msp", model=other).module.transform is not None


def test_the_network_that_is_given_stays_as_it_is(folder: Path) -> None:
    module = OODModule(TinyNetwork())
    Gate.load(folder, detector="msp", model=module)
    assert module.transform is None


def test_threads_take_turns_with_one_network(folder: Path, pictures: dict[str, Image.Image]) -> None:
    network, images = TinyNetwork(), list(pictures.values())[:8]
    gates = [Gate.load(folder, detector=name, model=network) for name in ("msp", "mahalanobis")] * 4
    expected = [gate(image) for gate, image in zip(gates, images, strict=True)]
    found: list[list[bool]] = [[] for _ in images]

    def ask(number: int) -> None:
        found[number] = [gates[number](images[number]) == expected[number] for _ in range(6)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[True] * 6] * len(images)


def test_a_saved_gate_needs_no_other_file(
    gate: Gate, folder: Path, tmp_path: Path, pictures: dict[str, Image.Image]
) -> None:
    gate.save(tmp_path / "made" / "gate")
    images = list(pictures.values())
    fresh = TinyNetwork()
    with torch.no_grad():
        fresh.head.weight.zero_()
    again = Gate.load(tmp_path / "made" / "gate", model=fresh)
    assert again(images) == gate(images)
    assert again.threshold == gate.threshold
    assert not fresh.head.weight.any()
    by_path = Gate.load(tmp_path / "made" / "gate", model="tests.gate.support.TinyNetwork")
    by_path.save(tmp_path / "named")
    assert Gate.load(tmp_path / "named", detector="mahalanobis")(images) == gate(images)
    assert sorted(path.name for path in (tmp_path / "named").iterdir()) == [
        "calibration.safetensors",
        "fitted",
        "gate.json",
        "weights.safetensors",
    ]
    with pytest.raises(InvalidArgumentError, match="exists and is not an empty folder"):
        gate.save(tmp_path / "named")
    with pytest.raises(InvalidArgumentError, match=r"a saved gate has a fixed threshold .*; omit tpr, "):
        Gate.load(tmp_path / "named", tpr=0.9)
    with pytest.raises(UnknownNameError, match="did you mean 'mahalanobis'"):
        Gate.load(tmp_path / "named", detector="mahalanobi")
    with pytest.raises(InvalidArgumentError, match=r"built in code, .*; call Gate\.load.* the gate has its weights"):
        Gate.load(tmp_path / "made" / "gate")


def test_a_save_that_fails_leaves_nothing(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("oodlit.gate.gate_folder.write_text", broken)
    with pytest.raises(OSError, match="disk full"):
        gate.save(tmp_path / "gate")
    assert list(tmp_path.iterdir()) == []


def test_damaged_gates_are_said(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    text = (tmp_path / "gate" / "gate.json").read_text()
    (tmp_path / "gate" / "gate.json").write_text(text.replace('"cut"', '"cat"'))
    with pytest.raises(DataError, match=r"gate.json: .*missing required field `cut` - at `\$\.threshold`"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())
    (tmp_path / "gate" / "gate.json").write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(InvalidArgumentError, match="expected a gate in format 1, got format 99 of oodlit"):
        Gate.load(tmp_path / "gate", model=TinyNetwork())
    with pytest.raises(DataError, match=r"with gate\.json; found gate"):
        Gate.load(tmp_path)


def test_what_has_to_be_given_is_said(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has several detectors; .* one of msp, mahalanobis, mc_dropout"):
        Gate.load(folder, model=TinyNetwork())
    with pytest.raises(UnknownNameError, match="did you mean 'mahalanobis'"):
        Gate.load(folder, detector="mahalanobs", model=TinyNetwork())
    for name in ("MSP", "MC dropout"):
        gate = Gate.load(folder, detector=name, model=TinyNetwork())
        assert gate.detector.key() == name.lower().replace(" ", "_")
    with pytest.raises(
        InvalidArgumentError, match=r"built in code, .* Gate.load\(..., model=network\), .* the weights of the run"
    ):
        Gate.load(folder, detector="msp")


@pytest.mark.parametrize("name", ["gate.onnx", "GATE.ONNX"])
def test_onnx_without_its_packages_is_said(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("oodlit.gate.program.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"to an .onnx file requires an optional .*pip install 'oodlit\[onnx\]'"
    ):
        gate.export(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gate", "gate.pt", "gate.onnx.zip", "folder.pt2"])
def test_names_of_programs_say_what_they_are(gate: Gate, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.pt2").mkdir()
    of = "the folder " if name == "folder.pt2" else ""
    with pytest.raises(InvalidArgumentError, match=rf"ends in .pt2 .* or .onnx, got {of}'.*{name}'"):
        gate.export(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.pt2"]


def test_other_images_are_refused(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (8, 8))
    for images, message in (
        (np.zeros((8, 8, 3)), r"got a numpy array; .*PIL\.Image.fromarray, .* torch.from_numpy"),
        ({"picture": image}, 'a mapping with "image", got dict'),
        ([[image]], "image 0: expected a PIL image, the bytes of an image file, a transformed tensor, got list"),
        ([image, "seven.png"], "image 1: expected a PIL image, .* got str"),
        (torch.zeros(1, 8, 8), r"image 0: .* got torch.float32 of shape \(1, 8, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"as in the run, got torch.uint8"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)], r"image 1: .* of shape \(3, 8, 8\) .* of shape \(3, 9, 8\)"),
        (Image.new("RGB", (4, 8)), r"of shape \(3, 8, 8\) .* of shape \(3, 8, 4\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            gate(images)
    with pytest.raises(InvalidArgumentError, match=r"of shape \(3, height, width\) after the transform, as in the run"):
        list(batches_of(torch.zeros(1, 4, 8, 8), None, None, (3, 8, 8), one_shape=False))
    with monkeypatch.context() as patch:
        patch.setattr(gate.module, "transform", np.asarray)
        with pytest.raises(InvalidArgumentError, match=r"to return a tensor, got ndarray; add ToTensor"):
            gate(image)
    with pytest.raises(DataError, match=r"image 0 cannot be read .undecodable image"):
        gate(b"no image")
    with pytest.raises(InvalidArgumentError, match="got 1 key for 2 images"):
        gate([image, image], keys=["one"])
    monkeypatch.setattr(Mahalanobis, "_score", lambda self, outputs: torch.full((len(outputs),), math.nan))
    with pytest.raises(
        NonFiniteScoreError, match=r"mahalanobis returned NaN for 2 images .first positions: 0, 1.; check"
    ):
        gate([image, image])


class AnySize(torch.nn.Module):
    """Takes images of any height and width from 3 x 3 on."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        self.features, self.head = torch.nn.Sequential(*made), torch.nn.Linear(8, 7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).sin().view_as(parameter))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def test_other_sizes_are_refused_where_the_run_had_one(data: OODDataModule, tmp_path: Path) -> None:
    """As the run recorded it; a gate of an older run, which says nothing of it, takes what the network takes."""
    large = Stream("large", Role.OOD, DatasetSource([(Image.new("RGB", (12, 10), (i, 0, 0)), 0) for i in range(5)]))
    gates = {}
    for name, streams in {"one": data.streams, "several": [*data.streams, large]}.items():
        some = OODDataModule(streams, transform=data.transform, batch_size=64, max_images=64)
        run(OODModule(AnySize(), transform=data.transform), some, [MSP()], tmp_path / name)
        gates[name] = Gate.load(tmp_path / name, model=AnySize())
    gates["one"].save(tmp_path / "saved")
    gates["saved"] = Gate.load(tmp_path / "saved", model=AnySize())
    for name in ("one", "saved"):
        assert len(gates[name](torch.rand(2, 3, 8, 8))) == 2
        for shape in ((3, 36, 40), (3, 7, 8), (3, 300, 300)):
            with pytest.raises(
                InvalidArgumentError, match=rf"of shape \(3, 8, 8\) .* of shape \({shape[0]}, {shape[1]}, "
            ):
                gates[name](torch.rand(shape))
    record = json.loads((tmp_path / "one" / "run.json").read_text())
    assert record["backbone"].pop("one_shape") is True
    (tmp_path / "one" / "run.json").write_text(json.dumps(record))
    gates["older"] = Gate.load(tmp_path / "one", model=AnySize())
    for name in ("several", "older"):
        assert len(gates[name](torch.rand(3, 36, 40))) == 1
        with pytest.raises(InvalidArgumentError, match=r"of one shape, got the shapes \(3, 8, 8\), \(3, 9, 8\)"):
            gates[name]([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)])


def test_precisions_of_a_run() -> None:
    with precision_context("bf16-mixed")(torch.device("cpu")):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16
    with precision_context("32-true")(torch.device("cpu")):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
    with pytest.raises(InvalidArgumentError, match=r"one of 32-true, .*got '16-true'; evaluate"):
        precision_context("16-true")


@pytest.mark.parametrize("pixels", [0.0, 26.0])
def test_a_gate_of_a_run_that_saw_other_pixels_says_so(folder: Path, tmp_path: Path, pixels: float) -> None:
    shutil.copytree(folder, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    deviations = {"deviation_of_pixels": {"largest": pixels, "mean": pixels}, "deviation_of_scores": {"msp": 0.01}}
    record["acceleration"] = {"decode_on_device": True, **deviations}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Gate.load(tmp_path / "run", detector="msp", model=TinyNetwork())
    found = [str(warning.message) for warning in caught if "decoded" in str(warning.message)]
    assert len(found) == (pixels > 0)
    assert all("differ by up to 26 of 255, and scores of 'msp' by 0.01 standard deviations" in text for text in found)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_images_that_are_no_numbers_are_refused_where_the_network_reads_other_pixels(gate: Gate, value: float) -> None:
    """As exported programs refuse them; the last row and column of 8 x 8 are in no window of the convolution."""
    images = torch.zeros(3, 3, 8, 8)
    images[1, 2, 7, 7] = value
    with pytest.raises(
        InvalidArgumentError, match=r"^Gate: .* after the transform, got NaN or infinity in 1 image .first positions: 1"
    ):
        gate(images)
    assert len(gate(images[[0, 2]])) == 2
