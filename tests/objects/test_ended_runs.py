"""A run over boxes that is ended, by a signal or an error, leaves a whole fit or nothing, and says where it is."""

import re
from pathlib import Path

import pandas as pd
import pytest

from oodlit.detectors import MSP, Mahalanobis, load
from oodlit.objects import ObjectResults
from tests.callbacks.processes import Ended, check_ended, run_together
from tests.objects import ended_script
from tests.objects.runs import benchmark, predict, write

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
ASKED, KILLED = 143, -9
CAUSES = {
    "asked": r"TerminatedError: the process was asked to end \(SIGTERM\) \(termination\.py, line \d+\)",
    "failed": r"TypeError: the network of one process \(ended_script\.py, line \d+\)",
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("sets"), images=4)


@pytest.fixture(scope="module")
def expected(sets) -> ObjectResults:
    return predict([MSP(), Mahalanobis()], benchmark(sets, sets=["near_coco"]))


def ended(processes: int, sets: Path, out: Path, what: str, at: str, victim: int = 0) -> list[Ended]:
    script, logs = ended_script.main, out.parent / "logs"
    return run_together(script, processes, sets, out, what, victim, at, folder=logs, timeout=120)


def check_kept(out: Path, sets: Path, expected: ObjectResults) -> None:
    """The fit is whole, a run goes on with it in the same folder, and nothing else is left of the one that ended."""
    kept = out / "unfinished" / "fitted"
    assert set(load(kept)[0]) == {"msp", "mahalanobis"}
    again = predict(None, benchmark(sets, sets=["near_coco"]), fitted=kept, output_dir=out)
    pd.testing.assert_frame_equal(again.boxes, expected.boxes)
    assert {"table.csv", "run.json", "fitted", "report.html"} <= {path.name for path in out.iterdir()}
    assert not [path.name for path in out.iterdir() if path.name.startswith((".", "unfinished"))]


@pytest.mark.parametrize("what", ["interrupted", "failed"])
def test_a_run_that_ends_while_it_scores_keeps_its_fit(tmp_path, sets, expected, what) -> None:
    out = tmp_path / "out"
    (one,) = ended(1, sets, out, what, "scoring")
    assert one.code == 1, one.stderr[-3000:]
    assert "done" not in one.stdout
    told = f"reuse the fit with ObjectDetection(fitted={str(out / 'unfinished' / 'fitted')!r}, ...)"
    assert told in one.stderr
    assert {path.name for path in out.iterdir()} == {"unfinished", ".progress"}
    check_kept(out, sets, expected)


@pytest.mark.parametrize(("what", "code"), [("asked", ASKED), ("killed", KILLED)])
def test_a_run_that_ends_before_its_fit_leaves_the_results_of_an_earlier_one(
    tmp_path, sets, expected, what, code
) -> None:
    out = tmp_path / "out"
    predict([MSP()], benchmark(sets, sets=["near_coco"]), output_dir=out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    (one,) = ended(1, sets, out, what, "training")
    assert one.code == code, one.stderr[-3000:]
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name != ".lock"} == before
    assert ((out / ".lock").exists()) is (what == "killed")  # the system gave it up; the file stays
    assert not (out / "unfinished").exists()
    assert ObjectResults.load(out).detectors == ("msp",)
    predict([MSP(), Mahalanobis()], benchmark(sets, sets=["near_coco"]), output_dir=out)
    pd.testing.assert_frame_equal(ObjectResults.load(out).boxes, expected.boxes)


@pytest.mark.parametrize(("what", "victim"), [("asked", 1), ("failed", 0), ("killed", 1)])
def test_two_processes_end_together_and_resume(tmp_path, sets, expected, what, victim) -> None:
    out = tmp_path / "out"
    both = ended(2, sets, out, what, "scoring", victim)
    cause = rf"rank {victim} of 2 on \S+ failed: {CAUSES.get(what)}; see the output of that process"
    if what == "killed":
        cause = f"rank {victim} of 2 disappeared"
    assert all(one.code for one in both)
    assert both[victim].code == {"asked": ASKED, "failed": 1, "killed": KILLED}[what]
    assert not any("done" in one.stdout for one in both)
    assert re.search(cause, both[1 - victim].stderr), both[1 - victim].stderr[-3000:]
    assert not (out / "run.json").exists()
    check_ended(ended(2, sets, out, "", "scoring"))
    results = ObjectResults.load(out)
    assert "the fit" in results.run.resumed
    pd.testing.assert_frame_equal(results.boxes, expected.boxes, rtol=1e-4, atol=1e-5)
