"""A rehearsal of benchmarks/gpu.py: every part on a CPU with tiny sizes."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", FOLDER / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def measured(gpu, monkeypatch, part: str) -> dict:
    monkeypatch.syspath_prepend(str(FOLDER))
    return gpu.PARTS[part](replace(gpu.TINY, batch=2, images=4, train=60, bank=60))


def test_closed_form_detectors_are_measured_on_top_of_the_network(gpu, monkeypatch):
    found = measured(gpu, monkeypatch, "closed")
    assert found["detectors"] >= 25
    assert set(found["failed"]) <= {"open_max", "ash", "scale"}  # random weights, and features with signs
    assert set(found["each_alone_us"]) >= {"msp", "mahalanobis", "vim", "react"}
    assert found["closed_form_share"] == pytest.approx(found["closed_form_us"] / found["bare_us"], rel=0.01)


def test_neighbours_are_measured_with_the_bank_in_both_places(gpu, monkeypatch):
    found = measured(gpu, monkeypatch, "knn")
    assert all(found[name] > 0 for name in ("bare_us", "on_the_cpu_us", "knn_us", "knn_share"))


def test_the_fit_is_measured(gpu, monkeypatch):
    found = measured(gpu, monkeypatch, "fit")
    assert found["rows"] == 60
    assert found["statistics_s"] > 0
    assert "wei_per" in found["slowest_fits_s"]


@pytest.mark.filterwarnings("ignore")
def test_a_run_from_shards_says_where_its_time_went(gpu, monkeypatch):
    found = measured(gpu, monkeypatch, "jpeg")
    assert found["images"] == 4
    assert found["time"]["reading"].keys() == {"read", "decode", "transform"}
    assert found["images_per_s"] > 0
    on_device = found["on_device"]
    assert found["images_per_s_on_device"] == on_device["images_per_s"] > 0
    assert 0 <= found["pixels_mean_on_device"] <= found["pixels_largest_on_device"] <= 26  # resizing alone differs
    assert found["logits_on_device"] <= 0.1
    assert on_device["time"]["reading"].keys() == {"read", "decode", "transform"}


def test_options_are_compared_with_eager(gpu, monkeypatch):
    found = measured(gpu, monkeypatch, "options")
    assert found["channels_last"] < 0.5
    assert 0 < found["bf16_to_float32"] < 0.5


def test_a_part_that_takes_too_long_loses_nothing_of_the_others(gpu):
    found = gpu.run_part("knn", ["--tiny"], 0.05)
    assert found == {"error": "took more than 0 s"}
    text = gpu.table({"closed": {"closed_form_share": 0.04}, "knn": {**found, "knn_share": 0.2}})
    assert "met: at most 0.05" in text
    assert "MISSED: at most 0.15" in text
    assert "took more than" in text


def test_the_limits_are_five_minutes_together(gpu):
    assert sum(gpu.LIMITS.values()) <= 300
    assert gpu.LIMITS.keys() == gpu.PARTS.keys()
    assert math.isclose(gpu.deviation(_rows([0.0, 2.0]), _rows([0.0, 2.0])), 0.0)


def _rows(values):
    import torch

    return torch.tensor(values)
