"""A run that is killed leaves either no result or a complete one."""

import itertools
import signal
import warnings
from pathlib import Path

import pytest

from oodlit import Results
from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import DataError
from oodlit.results import UnfinishedRunWarning
from tests.callbacks.processes import run_function
from tests.callbacks.support import run


def run_until_killed(out: Path, seconds: float) -> None:
    """Runs without end, of which the system ends one after so much time of the processor, whatever it is doing."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    for number in itertools.count():
        run([MSP(), Mahalanobis()], output_dir=out / f"run-{number}", num_thumbnails=0)


@pytest.mark.integration
@pytest.mark.ddp
def test_killing_a_run_at_any_point_leaves_complete_results_or_none(tmp_path):
    complete = 0
    for attempt, seconds in enumerate((0.3, 0.8, 1.1, 1.7)):
        out, logs = tmp_path / str(attempt), tmp_path / "logs"
        (ended,) = run_function(run_until_killed, out, seconds, folder=logs, each=[{}], timeout=120)
        assert ended.code == -signal.SIGPROF, ended.stderr
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
            assert "was interrupted" in str(error)  # noqa: PT017
            return False
    if not any(issubclass(warning.category, UnfinishedRunWarning) for warning in caught):
        assert len(results.scores) == 230
        return True
    sizes = {"train": 150, "val": 30, "far": 30, "tests": 8, "shifted": 12}
    counts = results.scores["dataset"].value_counts().to_dict()
    assert counts == {name: sizes[name] for name in counts}
    assert set(results.run.unfinished.missing) == sizes.keys() - counts.keys()
    return False
