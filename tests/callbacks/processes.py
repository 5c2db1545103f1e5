"""Processes of tests: started by hand, by Lightning or by torchrun; ended with the test, whatever happens."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OF_LAUNCHERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


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


def run_together(
    commands: Sequence[Sequence[str]], folder: Path, *, each: Sequence[Mapping[str, str]], timeout: float
) -> list[Ended]:
    """Start several commands at once, each with environment variables of its own, and wait for all of them."""
    common = {k: v for k, v in os.environ.items() if k not in OF_LAUNCHERS}
    common |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder.mkdir(parents=True, exist_ok=True)
    started, ended, start = [], {}, time.monotonic()
    for number, (command, own) in enumerate(zip(commands, each, strict=True)):
        with (folder / f"{number}.out").open("w") as out, (folder / f"{number}.err").open("w") as err:
            started.append(subprocess.Popen(command, cwd=ROOT, env=common | own, stdout=out, stderr=err))
    try:
        while len(ended) < len(started):
            for number, process in enumerate(started):
                if number not in ended and process.poll() is not None:
                    ended[number] = time.monotonic() - start
            assert time.monotonic() - start < timeout, f"still running: {sorted(set(range(len(started))) - set(ended))}"
            time.sleep(0.05)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [
        Ended(process.returncode, *((folder / f"{n}.{end}").read_text() for end in ("out", "err")), ended[n])
        for n, process in enumerate(started)
    ]


def python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def by_hand(world_size: int, *, nodes: int = 1) -> list[dict[str, str]]:
    """The environment of every process where none of them starts the others, as launchers set it."""
    port, devices = str(free_port()), world_size // nodes
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    return [
        common | {"NODE_RANK": str(rank // devices), "LOCAL_RANK": str(rank % devices)} for rank in range(world_size)
    ]
