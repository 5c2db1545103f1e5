"""A run that is killed leaves either no result or a complete one."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from oodlit import Results
from oodlit.errors import DataError
from oodlit.results import UnfinishedRunWarning

ROOT = Path(__file__).parents[2]
SCRIPT = """
import itertools, sys, warnings
warnings.simplefilter("ignore")
from tests.callbacks.support import run
from oodlit.detectors import MSP, Mahalanobis
print("ready", flush=True)
for i in itertools.count():
    run([MSP(), Mahalanobis()], output_dir=f"{sys.argv[1]}/run-{i}", num_thumbnails=0)
"""


@pytest.mark.ddp
def test_killing_a_run_at_any_point_leaves_complete_results_or_none(tmp_path):
    complete = 0
    for attempt, delay in enumerate((0.3, 0.8, 1.1, 1.7)):
        out = tmp_path / str(attempt)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(out)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)  # some point within the endless runs: that is what is tested
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for folder in out.glob("run-*"):
            # Made before the run, to see that it can be written; a run that was killed leaves hidden files.
            if all(path.name.startswith(".") for path in folder.iterdir()):
                continue
            complete += _is_complete(folder)
    assert complete >= 1


def _is_complete(folder: Path) -> bool:
    """Whether the folder holds a whole run; else it must hold whole streams, and say so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = Results.load(folder)
        except DataError as error:
            assert "broke off" in str(error)  # noqa: PT017
            return False
    if not any(issubclass(warning.category, UnfinishedRunWarning) for warning in caught):
        assert len(results.scores) == 230
        return True
    sizes = {"train": 150, "val": 30, "far": 30, "tests": 8, "shifted": 12}
    counts = results.scores["dataset"].value_counts().to_dict()
    assert counts == {name: sizes[name] for name in counts}
    assert set(results.run["unfinished"]["missing"]) == sizes.keys() - counts.keys()
    return False
