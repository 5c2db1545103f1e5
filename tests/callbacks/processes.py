"""Processes of tests: commands, or functions in forks of a process that has imported everything already.

Whatever happens, they are ended with the test.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OF_LAUNCHERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PRELOADED = ["tests.callbacks.sweep_run", "tests.callbacks.failing_script", "tests.callbacks.every_kind"]


class Ended(NamedTuple):
    """How a process ended: its exit code, what it wrote, and after how many seconds."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def by_hand(world_size: int, *, nodes: int = 1) -> list[dict[str, str]]:
    """The environment of every process where none of them starts the others, as launchers set it."""
    port, devices = str(free_port()), world_size // nodes
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    return [
        common | {"NODE_RANK": str(rank // devices), "LOCAL_RANK": str(rank % devices)} for rank in range(world_size)
    ]


def python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def run_commands(
    commands: Sequence[Sequence[str]], folder: Path, *, each: Sequence[Mapping[str, str]], timeout: float
) -> list[Ended]:
    """Start several commands at once, each with environment variables of its own, and wait for all of them."""
    common = {k: v for k, v in os.environ.items() if k not in OF_LAUNCHERS}
    common |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for number, (command, own) in enumerate(zip(commands, each, strict=True)):
        with (folder / f"{number}.out").open("w") as out, (folder / f"{number}.err").open("w") as err:
            started.append(subprocess.Popen(command, cwd=ROOT, env=common | own, stdout=out, stderr=err))
    return _wait([process.poll for process in started], [process.pid for process in started], folder, timeout)


def forks() -> ForkServerContext:
    """Makes processes as forks of one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_function(
    target: Callable[..., None], *arguments: Any, folder: Path, each: Sequence[Mapping[str, str]], timeout: float
) -> list[Ended]:
    """Call a function in several processes at once, each with environment variables of its own, and wait for all."""
    context = forks()
    folder.mkdir(parents=True, exist_ok=True)
    before = dict(os.environ)
    os.environ.update({"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    for name in OF_LAUNCHERS:
        os.environ.pop(name, None)
    try:
        started = [
            context.Process(target=_call, args=(target, arguments, dict(own), str(folder / str(number))))
            for number, own in enumerate(each)
        ]
        for process in started:
            process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    polls = [lambda process=process: process.exitcode for process in started]
    return _wait(polls, [process.pid or 0 for process in started], folder, timeout)


def run_together(
    target: Callable[..., None], processes: int, *arguments: Any, folder: Path, timeout: float = 300
) -> list[Ended]:
    """Call `target(processes, *arguments)` in so many processes of one run, as `run_function` does."""
    each = by_hand(processes) if processes > 1 else [{}]
    return run_function(target, processes, *arguments, folder=folder, each=each, timeout=timeout)


def check_ended(ended: Sequence[Ended]) -> None:
    """Assert that all ended well."""
    for rank, one in enumerate(ended):
        assert one.code == 0, f"process {rank}:\n{one.stderr[-4000:]}"


def _call(target: Callable[..., None], arguments: Sequence[Any], environment: dict[str, str], path: str) -> None:
    os.environ.update(environment)
    for descriptor, end in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{path}.{end}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method(None, force=True)  # workers of data loaders start as they do on this platform
    target(*arguments)


def _wait(polls: Sequence[Callable[[], int | None]], pids: Sequence[int], folder: Path, timeout: float) -> list[Ended]:
    ended: dict[int, tuple[int, float]] = {}
    start = time.monotonic()
    try:
        while len(ended) < len(polls):
            for number, poll in enumerate(polls):
                if number not in ended and (code := poll()) is not None:
                    ended[number] = code, time.monotonic() - start
            waiting = sorted(set(range(len(polls))) - ended.keys())
            assert time.monotonic() - start < timeout, f"still running: {waiting}, logs in {folder}"
            time.sleep(0.02)
    finally:
        for number, pid in enumerate(pids):
            if number not in ended:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
    return [
        Ended(code, *((folder / f"{number}.{end}").read_text() for end in ("out", "err")), seconds)
        for number, (code, seconds) in sorted(ended.items())
    ]
