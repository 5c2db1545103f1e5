"""One process fails: all others end within a minute, and say why it failed."""

import re

import pytest

from tests.callbacks import failing_script
from tests.callbacks.processes import Ended, by_hand, python, run_commands, run_function

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
PROCESSES = 3
CAUSES = {
    "detector": "ValueError: the detector of one process",
    "backbone": "TypeError: the backbone of one process",
    "asleep": "TypeError: the backbone of one process",
    "setup": "FileNotFoundError: no such disk",
    "unprintable": "UnprintableError: the message of this error cannot be shown, because str\\(error\\) raised OSError",
    "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt:",
    "asked": r"TerminatedError: the process was asked to end \(SIGTERM\)",
}
EVERY = [(what, victim) for what in (*CAUSES, "killed") for victim in (0, 2)]
QUICK = [("detector", 2), ("killed", 0), ("unprintable", 0), ("asked", 2)]


def check_ended(ended: list[Ended], what: str, victim: int) -> None:
    place = r"\((failing_script|termination).py, line \d+\); see the output of that process"
    cause = rf"rank {victim} of {PROCESSES} on \S+ failed: {CAUSES.get(what)} {place}"
    if what == "killed":
        cause = f"rank {victim} of {PROCESSES} disappeared"
    for rank, one in enumerate(ended):
        assert one.code != 0, rank
        assert "done" not in one.stdout
        assert one.seconds < ended[victim].seconds + 60, rank
        if rank != victim:
            assert re.search(cause, one.stderr), f"process {rank}:\n{one.stderr[-3000:]}"


@pytest.mark.parametrize(
    ("what", "victim"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in EVERY]
)
def test_the_others_say_why_and_end(tmp_path, what, victim):
    arguments = (tmp_path / "out", what, victim, PROCESSES, "ddp", 1)
    each = by_hand(PROCESSES)
    ended = run_function(failing_script.main, *arguments, folder=tmp_path / "logs", each=each, timeout=150)
    check_ended(ended, what, victim)
    assert not (tmp_path / "out" / "run.json").exists(), "half results"


@pytest.mark.slow
@pytest.mark.parametrize(("what", "victim"), [("backbone", 0), ("setup", 2), ("killed", 2)])
def test_programs_of_their_own(tmp_path, what, victim):
    """The end of the interpreter is part of it, which a forked process does not have."""
    command = python("tests.callbacks.failing_script", tmp_path / "out", what, victim, PROCESSES, "ddp", 1)
    each = by_hand(PROCESSES)
    ended = run_commands([command] * PROCESSES, tmp_path / "logs", each=each, timeout=300)
    check_ended(ended, what, victim)


def test_runs_of_the_same_processes_are_distinguished(tmp_path):
    """What happens to one process when all have done their part ends no other, and does not deafen the next run."""
    script, logs = failing_script.after_an_error_of_its_own, tmp_path / "logs"
    ended = run_function(script, tmp_path / "out", folder=logs, each=by_hand(2), timeout=100)
    assert all(one.code for one in ended)
    assert ended[0].stdout.split() == ["forgiven", "well"]
    assert ended[1].stdout.split() == ["well"]
    assert re.search(r"rank 1 of 2 on \S+ failed: TypeError: the backbone of one process", ended[0].stderr)


def test_runs_leave_no_threads_and_files_behind(tmp_path):
    script, logs = failing_script.leave_nothing_behind, tmp_path / "logs"
    ended = run_function(script, tmp_path / "out", folder=logs, each=by_hand(2), timeout=100)
    assert [one.code for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
