"""One process fails: all others end within a minute, and say why it failed."""

import re

import pytest

from tests.callbacks.processes import Ended, by_hand, python, run_together

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
SCRIPT = "tests.callbacks.failing_script"


def run(folder, what: str, *, victim: int, processes: int = 3, timeout: float = 300) -> list[Ended]:
    command = python(SCRIPT, folder / "out", what, victim, processes, "ddp", 1)
    return run_together([command] * processes, folder / "logs", each=by_hand(processes), timeout=timeout)


def check_ended(ended: list[Ended], victim: int, cause: str) -> None:
    gone = ended[victim].seconds
    for rank, one in enumerate(ended):
        assert one.code != 0, rank
        assert "done" not in one.stdout
        assert one.seconds < gone + 60, rank
        if rank != victim:
            assert re.search(cause, one.stderr), f"process {rank}:\n{one.stderr[-3000:]}"


@pytest.mark.parametrize(
    ("what", "victim", "cause"),
    [
        ("detector", 2, r"process 2 of 3 on \S+ failed: ValueError: the detector of one process \(failing_script.py, line \d+\)"),
        pytest.param("backbone", 1, r"process 1 of 3 on \S+ failed: TypeError: the backbone", marks=pytest.mark.slow),
        pytest.param("backbone", 0, r"process 0 of 3 on \S+ failed: TypeError: the backbone", marks=pytest.mark.slow),
        pytest.param("setup", 1, r"process 1 of 3 on \S+ failed: FileNotFoundError: no such disk", marks=pytest.mark.slow),
        pytest.param("setup", 0, r"process 0 of 3 on \S+ failed: FileNotFoundError: no such disk", marks=pytest.mark.slow),
        ("killed", 0, "process 0 of 3 is gone"),
        pytest.param("killed", 2, "process 2 of 3 is gone", marks=pytest.mark.slow),
        pytest.param("asleep", 0, r"process 0 of 3 on \S+ failed: TypeError", marks=pytest.mark.slow),
        pytest.param("asleep", 1, r"process 1 of 3 on \S+ failed: TypeError", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_others_say_why_and_end(tmp_path, what, victim, cause):
    check_ended(run(tmp_path, what, victim=victim), victim, cause)
