"""Detectors in files: the same bits come back, and damaged files are refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from oodlit.detectors import (
    DDU,
    KNN,
    Cosine,
    Detector,
    Energy,
    Mahalanobis,
    ReAct,
    RelativeMahalanobis,
    ViM,
    detectors,
    fit,
    load,
    save,
)
from oodlit.detectors.contract.class_paths import from_config
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

from .support import negative_words, small_problem


def test_scores_after_loading_are_the_same_bits(tmp_path: Path) -> None:
    train, head = small_problem(signed=False)
    named: dict[str, Detector] = {
        "a/b": Mahalanobis(),
        "..": RelativeMahalanobis(),
        "é\n": ViM(),
        "": KNN(k=1),
        "0.1": DDU("full"),
        "x y": Cosine(),
    }
    fit(list(named.values()), [train], head)
    save(named, tmp_path)
    loaded, _ = load(tmp_path)
    assert list(loaded) == list(named)
    for name, detector in loaded.items():
        fresh = Outputs(train.logits, train.features)
        assert torch.equal(detector.score(fresh), named[name].score(train)), name


def test_every_detector_of_features_comes_back_with_the_same_bits(tmp_path: Path) -> None:
    """Products depend in their last bit on where a tensor lies in memory: one of a file lies anywhere."""
    train, head = small_problem(n=300, width=20, classes=6, signed=False)
    words = negative_words(tmp_path / "words.safetensors", width=20)
    settings = {"knn": {"k": 2}, "nn_guide": {"k": 2}, "neg_label": words, "csp": words}
    named = {
        key: kind(**settings.get(key, {}))
        for key, kind in detectors().items()
        if not kind().required_needs & {"images", "hidden", "model"}
    }
    fit(list(named.values()), [train], head)
    save(named, tmp_path)
    loaded, _ = load(tmp_path)
    assert len(loaded) >= 36
    for name, detector in loaded.items():
        assert all(buffer.data_ptr() % 64 == 0 for buffer in detector.buffers() if buffer.numel()), name
        fresh = Outputs(train.logits, train.features)
        assert torch.equal(detector.score(fresh), named[name].score(Outputs(train.logits, train.features))), name


@pytest.mark.parametrize("damage", ["cut tensors", "no JSON", "a list", "no settings", "no tensor", "no number"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    train, _ = small_problem(signed=False)
    detector = Mahalanobis()
    fit([detector], [train])
    save({"m": detector}, tmp_path)
    tensor_file, text_file = tmp_path / "detectors.safetensors", tmp_path / "detectors.json"
    tensors, description = load_file(tensor_file), json.loads(text_file.read_text())
    entry = description["detectors"][0]
    if damage == "no settings":
        del entry["init_args"]
    elif damage == "no tensor":
        del tensors["0.whiten"]
    elif damage == "no number":
        tensors = {f"x{name}": value for name, value in tensors.items()}
    text = {"no JSON": "hello", "a list": "[]"}.get(damage, json.dumps(description))
    text_file.write_text(text)
    tensor_file.write_bytes(to_bytes(tensors, metadata={"description": text}))
    if damage == "cut tensors":
        tensor_file.write_bytes(tensor_file.read_bytes()[:100])
    with pytest.raises(InvalidArgumentError, match="the saved detectors are damaged"):
        load(tmp_path)


def test_unknown_settings_are_named_in_one_line(tmp_path: Path) -> None:
    save({"e": Energy()}, tmp_path)
    text = (tmp_path / "detectors.json").read_text().replace('"temperature": 1.0', '"heat": 1.0')
    (tmp_path / "detectors.json").write_text(text)
    (tmp_path / "detectors.safetensors").write_bytes(to_bytes({}, metadata={"description": text}))
    then = {"class_path": "oodlit.detectors.DICE", "init_args": {"p": 10.0}}
    for attempt, kind, name, known in [
        (lambda: load(tmp_path), "Energy", "heat", "temperature"),
        (lambda: KNN.preset("full", n=3), "KNN", "n", "k, bank_size"),
        (
            lambda: from_config({"class_path": "oodlit.detectors.MSP", "init_args": {"x": 1}}, Detector),
            "MSP",
            "x",
            "none",
        ),
        (lambda: ReAct.preset("dice", then=then), "DICE", "p", "percentile, then"),
    ]:
        with pytest.raises(InvalidArgumentError) as caught:
            attempt()
        assert str(caught.value) == f"{kind}: got an unexpected keyword argument {name!r}; available settings: {known}"
