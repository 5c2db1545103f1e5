"""Run by test_ended.py: one command in a process of its own, which a signal reaches at a given point."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from oodlit.base import atomic
from oodlit.cli import main as command_line
from oodlit.datamodules.shards import build as shard_build
from oodlit.results import finished as whole
from oodlit.runs import scored
from oodlit.scoring.scoring import Scoring
from oodlit.testing import launch

GROUP = "SIGTERM to the group"


def kill(name: str) -> None:
    if name == GROUP:  # as `timeout` does: workers that read images receive it, too
        os.killpg(os.getpgrp(), signal.SIGTERM)
    else:
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(0.001)  # Python looks at signals between two instructions


def before(home: Any, name: str, what: Callable[[], None], *, call: int = 1) -> None:
    """Let something happen before a function is called for the n-th time."""
    real, seen = getattr(home, name), 0

    def changed(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == call:
            what()
        return real(*arguments, **named)

    setattr(home, name, changed)


def run(arguments: list[str], sent: str, at: str) -> None:
    """`oodlit ARGUMENTS`, with a signal at one of PLACES."""
    os.setpgrp()
    if sent == GROUP:  # after every batch, as a long run does after every minute
        progress = scored.Progress
        scored.Progress = lambda *given, **named: progress(*given, **{**named, "every_s": 0.0})  # type: ignore[misc, assignment]
    tempfile.tempdir = None  # as the environment says from here on
    home, name, call = PLACES[at]
    before(home, name, lambda: kill(sent), call=call)
    start = subprocess.Popen.__init__

    def told(self: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
        start(self, *given, **named)
        print("started", self.pid, flush=True)

    subprocess.Popen.__init__ = told  # type: ignore[method-assign]
    sys.exit(command_line.main(arguments))


PLACES: dict[str, tuple[Any, str, int]] = {
    "the third shard": (shard_build, "write_shard", 3),
    "the third batch is scored": (Scoring, "score", 3),
    "the page is being written": (atomic, "fsync", 1),
    "the run is read": (whole, "load_complete", 1),
    "other processes are at work": (launch.time, "sleep", 1),
}
"""Where the signal comes: a module, one of its functions, and the number of its call."""
