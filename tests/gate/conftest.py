"""A run over the digits, and a gate of it."""

from pathlib import Path

import pytest
from PIL import Image

from oodlit import Gate, OODModule, Results
from oodlit.datamodules import OODDataModule
from oodlit.detectors import MSP, Mahalanobis, MCDropout
from tests.gate.support import TinyNetwork, digits, run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def data(root: Path) -> OODDataModule:
    return digits(root / "shards")


@pytest.fixture(scope="module")
def folder(root: Path, data: OODDataModule) -> Path:
    detectors = [MSP(), Mahalanobis(), MCDropout(passes=3)]
    run(OODModule(TinyNetwork(), transform=data.transform), data, detectors, root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def gate(folder: Path) -> Gate:
    return Gate.load(folder, detector="mahalanobis", model=TinyNetwork())


@pytest.fixture(scope="module")
def pictures(folder: Path, data: OODDataModule) -> dict[str, Image.Image]:
    """Pictures by key: the one that decides the threshold, and others."""
    results = Results.load(folder)
    rows = results.scores[results.scores["dataset"] != "digits_train"]
    scores = rows.set_index("key")["mahalanobis"]
    at = scores[scores == results.threshold("mahalanobis")].index.tolist()
    return data.read_images([*at, *scores.index[400:420], *scores.index[-20:]])
