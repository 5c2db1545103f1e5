"""Peak memory does not grow with the number of batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
def test_unbounded_memory(part, batches):
    """FAULTS: batches of 64 x 2048 features: all of them are 0.5 MB per batch, what is kept is scores and moments."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.callbacks.memory_script", part, str(batches)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    before, after = map(float, done.stdout.split()[-2:])
    kept = batches * 64 * 2048 * 4 / 2**20
    assert after - before < 0.3 * kept, f"{after - before:.0f} MB more after {batches} batches of {kept:.0f} MB in all"
