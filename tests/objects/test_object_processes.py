"""One, two and three real processes (gloo), batches of one and four, images of different sizes: the same tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodlit.objects import ObjectResults
from tests.callbacks.processes import check_ended, run_together
from tests.objects import run_script
from tests.objects.runs import write

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
CASES = ("full-1", "full-4", "few-1", "few-4")


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("sets"), images=7)


def launch(devices: int, sets: Path, out: Path) -> Path:
    check_ended(run_together(run_script.main, devices, sets, out, folder=out / "logs"))
    return out


@pytest.fixture(scope="module")
def single(sets, tmp_path_factory) -> Path:
    return launch(1, sets, tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module", params=[2, 3])
def several(request, sets, tmp_path_factory) -> Path:
    return launch(request.param, sets, tmp_path_factory.mktemp("several"))


def assert_same(one: ObjectResults, other: ObjectResults) -> None:
    names = list(one.detectors)
    assert other.detectors == one.detectors
    assert len(one.boxes) > 0
    pd.testing.assert_frame_equal(other.boxes.drop(columns=names), one.boxes.drop(columns=names))
    np.testing.assert_allclose(other.boxes[names], one.boxes[names], rtol=1e-4, atol=1e-5)
    pd.testing.assert_frame_equal(other.images, one.images)
    pd.testing.assert_frame_equal(other.objects, one.objects)
    pd.testing.assert_frame_equal(other.table, one.table, rtol=1e-4)


def test_processes_change_nothing(single, several) -> None:
    for case in CASES:
        assert_same(ObjectResults.load(single / case), ObjectResults.load(several / case))


def test_the_batch_size_changes_nothing(single) -> None:
    for case in ("full", "few"):
        assert_same(ObjectResults.load(single / f"{case}-1"), ObjectResults.load(single / f"{case}-4"))
