"""Peak memory does not grow with the number of batches, or no more than what is kept."""

from pathlib import Path

import pytest

from tests.callbacks import memory_script
from tests.callbacks.processes import check_ended, run_function

pytestmark = pytest.mark.integration

pytest.importorskip("resource", reason="peak memory is read with the resource module of Unix")


@pytest.mark.parametrize(
    ("part", "batches"),
    [
        ("run", 200),
        ("statistic", 100),
        pytest.param("run", 1000, marks=pytest.mark.slow),
        pytest.param("statistic", 1000, marks=pytest.mark.slow),
    ],
)
def test_unbounded_memory(part, batches, tmp_path):
    """Batches of 64 x 2048 features take 0.5 MB each; only scores and moments are kept."""
    growth, kept, *_ = measured(part, batches, tmp_path)
    assert growth < 0.3 * kept, f"{growth:.0f} MB more after {batches} batches of {kept:.0f} MB in all"


def test_a_bank_is_in_memory_once(tmp_path):
    """A bank of the whole training set is 10 GB for ImageNet: neither merging its parts nor the detector doubles it."""
    growth, kept, *_ = measured("bank", 500, tmp_path)
    assert growth < 1.4 * kept, f"{growth:.0f} MB more for a bank of {kept:.0f} MB"


def test_training_images_leave_nothing_but_statistics(tmp_path):
    """Through the callback, with all detectors that apply and keep no bank: 120 MB of features more, none are kept."""
    growth, *_ = measured("training", 120, tmp_path)
    features = 120 * 4096 * 64 * 4 / 2**20
    assert growth < 0.3 * features, f"{growth:.0f} MB more for {features:.0f} MB of features"


def test_a_fit_takes_what_was_announced(tmp_path):
    """Once the sample is full, after half of the stream; the libraries have been loaded by a smaller fit."""
    growth, _, announced = measured("announced", 200, tmp_path)
    assert announced / 2 < growth < 1.5 * announced, f"{growth:.0f} MB more, {announced:.0f} MB announced"


def measured(part: str, batches: int, folder: Path) -> tuple[float, ...]:
    """Growth of the peak, the size of all batches, and what else is printed, in MB."""
    ended = run_function(memory_script.main, part, batches, folder=folder, each=[{}], timeout=600)
    check_ended(ended)
    before, after, *others = map(float, ended[0].stdout.splitlines()[-1].split())
    return after - before, batches * 64 * 2048 * 4 / 2**20, *others
