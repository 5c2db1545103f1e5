"""Processes that were given different data or detectors stop with an error instead of mixing two runs."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oodlit.callbacks import FeatureCache
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Stream
from oodlit.detectors import KNN, MSP
from tests.callbacks.processes import by_hand, run_function
from tests.callbacks.support import make_module, make_streams, make_trainer, run


def with_other_labels(streams: list[Stream]) -> list[Stream]:
    """The labels of the ID set, as if its classes were numbered in another order."""
    samples = streams[1].source.read(0, 30)
    changed = MemorySource([replace(sample, label=5 - sample.label) for sample in samples])
    return [streams[0], replace(streams[1], source=changed), *streams[2:]]


def backwards(streams: list[Stream]) -> list[Stream]:
    """The files of the OOD set, as if they had been listed without sorting."""
    samples = list(streams[2].source.read(0, 30))
    return [*streams[:2], replace(streams[2], source=MemorySource(samples[::-1])), *streams[3:]]


CHANGES: dict[str, Callable[[list[Stream]], list[Stream]]] = {
    "labels": with_other_labels,
    "order": backwards,
    "detectors": lambda streams: streams,
}


def run_as_another(out: Path, kind: str, what: str) -> None:
    """A run of two processes, of which the second one has something else."""
    is_second = os.environ["LOCAL_RANK"] == "1"
    streams = CHANGES[what](make_streams()) if is_second else make_streams()
    trainer = {"devices": 2, "strategy": "ddp"}
    if kind == "cache":
        data = OODDataModule(streams, batch_size=16)
        make_trainer(FeatureCache(out), **trainer).predict(make_module(), data, return_predictions=False)
    else:
        k = 9 if is_second and what == "detectors" else 5
        run([MSP(), KNN(k=k)], streams=streams, trainer=trainer, output_dir=out if kind == "folder" else None)


@pytest.mark.ddp
@pytest.mark.parametrize(
    ("kind", "what", "named"),
    [
        ("folder", "labels", r"data set 'val': content"),
        ("memory", "order", r"data set 'far': content, data set 'far': sample"),
        ("memory", "detectors", r"detector 'knn'"),
        ("cache", "labels", r"data set 'val': content"),
    ],
)
def test_processes_with_different_runs_are_refused(tmp_path: Path, kind: str, what: str, named: str) -> None:
    ended = run_function(
        run_as_another, tmp_path / "out", kind, what, folder=tmp_path / "logs", each=by_hand(2), timeout=120
    )
    assert all(one.code != 0 for one in ended)
    assert all(f"given different data or detectors ({named}" in one.stderr for one in ended), ended[0].stderr
    assert not (tmp_path / "out" / "table.csv").exists()
