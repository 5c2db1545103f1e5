"""The benchmark of a fit at the size of ImageNet, rehearsed on a few thousand images: what it gives, not how fast."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import scale
from tests.callbacks.processes import forks

SIZES = scale.Sizes(images=4000, width=32, classes=8, batch=256)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")


def test_images_are_the_same_for_any_cut():
    """Two processes have together what one has."""
    data = scale.Data(SIZES)
    whole = dict(data.features())
    parts = dict(data.features(0, 2)) | dict(data.features(1, 2))
    assert sorted(number for images in parts for number in images) == list(range(SIZES.images))
    assert all(bool((features == whole[images]).all()) for images, features in parts.items())


@pytest.fixture
def quick_starts(monkeypatch):
    """Processes that need not import everything anew."""
    monkeypatch.setattr(scale, "get_context", lambda method: forks())


@pytest.mark.usefixtures("quick_starts")
def test_memory():
    """In a process of its own, above what it has with torch imported: a few MB, and what the libraries take."""
    memory = scale._apart(scale.memory, SIZES)
    assert memory["baseline"] > 100
    assert len(memory["stream"]) == 10
    assert memory["stream"] == sorted(memory["stream"]), "a peak never falls"
    assert 0 < memory["stream"][0] <= memory["stream"][-1] <= memory["fit"] < 300
    assert 0.5 < memory["announced"] < 3, "4000 rows of 32 features twice, and moments of 8 classes"


def test_times_and_bank_as_they_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scale, "_apart", lambda function, *arguments: function(*arguments))
    sizes = [f"--{name}={value}" for name, value in vars(SIZES).items()]
    file = tmp_path / "figures.json"
    command = ["scale.py", *sizes, "--parts", "time", "bank", "--queries", "16", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    scale.main()
    written = json.loads(file.read_text())
    time, bank = written["figures"]["time"], written["figures"]["bank"]
    assert written["sizes"] == vars(SIZES)
    printed = capsys.readouterr().out
    assert f"{time['ratio']:.2f}" in printed
    assert f"{bank['ratio']:.2f}" in printed
    assert time["ratio"] == pytest.approx((time["stream"] + time["fit"]) / (time["head"] + time["square"]))
    assert bank["ratio"] == pytest.approx(bank["knn"] / bank["bare"])
    assert bank["bank"] == pytest.approx(4000 * 32 * 4 / 2**20)
    assert bank["bank"] < bank["announced"]
    timed = [*time.values(), bank["knn"], bank["bare"]]
    assert all(math.isfinite(value) and value > 0 for value in timed)


@pytest.mark.ddp
@pytest.mark.usefixtures("quick_starts")
def test_processes():
    figures = scale.processes(SIZES, repeats=1)
    assert set(figures) == {f"{name} of {n}" for name in ("wall", "cpu") for n in (1, 2)} | {
        "speed-up by wall",
        "speed-up by cpu",
    }
    for name in ("wall", "cpu"):
        assert figures[f"speed-up by {name}"] == pytest.approx(figures[f"{name} of 1"] / figures[f"{name} of 2"])
    assert all(math.isfinite(value) and value > 0 for value in figures.values())


def test_every_detector_of_the_tables_but_the_bank():
    """The names are those of NINCO's published tables."""
    published = Path(__file__).parents[1] / "oodlit/results/published/ninco.csv"
    methods = {line.split(",")[1] for line in published.read_text().splitlines()[1:]}
    short = {"RelativeMahalanobis": "RMahalanobis", "RelativeCosine": "RCos"}
    assert {short.get(name, name) for name in scale.NINCO} == methods - {"KNN"}
