"""Load saved detectors in other processes, and fit them again in two processes.

Starting Python takes seconds, so all detectors share the processes. Detectors are sent as files of
`oodlit.detectors.save`, and the problem as the name of its function; nothing is pickled.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from oodlit.base.current_folder import shared_with_processes
from oodlit.base.outputs import Outputs
from oodlit.detectors import save
from oodlit.testing.clauses import Factory
from oodlit.testing.comparison import fit_on, fitted
from oodlit.testing.problems import Problem, ProblemFactory, select

NUM_PROCESSES = 2
FRACTIONS = {"uneven parts": 0.7, "an empty part": 1.0}
"""Fractions of the training images that rank 0 sees."""
TIMEOUT_S = 300


class LaunchResult(NamedTuple):
    """Scores and errors of one detector.

    Args:
        expected: Scores in this process, by step.
        scores: Scores in the other processes, by step and rank, for example "saved, rank 0".
        errors: Error messages by step and rank.
    """

    expected: dict[str, Tensor]
    scores: dict[str, Tensor]
    errors: dict[str, str]


@lru_cache(maxsize=8)
def launch(factories: tuple[Factory, ...], problem: ProblemFactory) -> tuple[LaunchResult, ...]:
    """Run all detectors in two new processes; the result is cached.

    Args:
        factories: One per detector.
        problem: A module-level function, so that other processes can import it.

    Returns:
        One result per factory, in order.
    """
    with tempfile.TemporaryDirectory(prefix="oodlit-testing-") as name:
        folder = Path(name)
        results = [_prepare(factory, problem, folder / str(i)) for i, factory in enumerate(factories)]
        modules = sorted({type(f()).__module__ for f in factories} | {problem.__module__})
        task = {
            "problem": [problem.__module__, problem.__qualname__],
            "modules": {m: getattr(sys.modules.get(m), "__file__", None) for m in modules},
            "saved": {str(i): repr(factories[i]()) for i, result in enumerate(results) if not result.errors},
            "processes": NUM_PROCESSES,
        }
        (folder / "task.json").write_text(json.dumps(task))
        exits = _run(folder)
        for i, result in enumerate(results):
            if not result.errors:
                _collect(folder, i, result, exits)
        return tuple(results)


def _prepare(factory: Factory, problem: ProblemFactory, folder: Path) -> LaunchResult:
    """Fit and save one detector."""
    data = problem()
    try:
        detector = fitted(factory, data)
        expected = {"saved": detector.score(data.tests)}
        if detector.required_statistics:
            for what, fraction in FRACTIONS.items():
                batches = [batch for rank in range(NUM_PROCESSES) for batch in batches_of(data, fraction, rank)]
                expected[what] = fit_on(factory(), batches, data.head).score(data.tests)
        save({"detector": detector}, folder)
    except Exception as error:  # the check reports it
        return LaunchResult({}, {}, {"preparing": f"{type(error).__name__}: {error}"})
    return LaunchResult(expected, {}, {})


def batches_of(data: Problem, fraction: float, rank: int) -> list[Outputs]:
    """The training batches of one of two processes; rank 0 sees a fraction of the images."""
    end = round(fraction * len(data.train))
    rows = torch.arange(len(data.train)).roll(37)  # every part has images of most classes
    mine = rows[:end] if rank == 0 else rows[end:]
    return [select(data.train, part) for part in mine.chunk(2)] if len(mine) else []


def _run(folder: Path) -> str:
    """Start the processes and wait; returns the last lines of their logs if one fails."""
    with shared_with_processes():
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = []
    for rank in range(NUM_PROCESSES):
        command = [sys.executable, "-m", "oodlit.testing.worker", str(folder), str(rank)]
        with (folder / f"{rank}.log").open("w") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log))
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while None in (codes := [p.poll() for p in started]) and not any(codes) and time.monotonic() <= deadline:
            time.sleep(0.05)
        problems = [f"rank {r} exited with code {p.poll()}" for r, p in enumerate(started) if p.poll()]
        late = "" if problems else f" after {TIMEOUT_S} s"
        problems += [f"rank {r} was stopped{late}" for r, p in enumerate(started) if p.poll() is None]
    finally:
        for process in started:
            process.kill()  # has no effect on one that has ended
            process.wait()
    logs = ((folder / f"{r}.log").read_text().strip().splitlines()[-3:] for r in range(NUM_PROCESSES))
    return "; ".join([*problems, *(line for log in logs for line in log)]) if problems else ""


def _collect(folder: Path, number: int, result: LaunchResult, exits: str) -> None:
    """Add the results of one detector from all processes."""
    for rank in range(NUM_PROCESSES):
        file = folder / f"{number}.{rank}.json"
        if file.exists():
            result.errors.update({f"{k}, rank {rank}": v for k, v in json.loads(file.read_text()).items()})
            scores = load_file(folder / f"{number}.{rank}.safetensors")
            result.scores.update({f"{k}, rank {rank}": v for k, v in scores.items()})
        else:
            result.errors["processes"] = f"worker process {rank} ended before it checked the detector: {exits}"


def find_object(module: str, name: str, file: str | None = None) -> object:
    """Import an object of a module, from its file if the module cannot be imported by name."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        spec = None if file is None else importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        found = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return attrgetter(name)(found) if name else found
