"""Runs over recorded outputs and tiny shards, cut over processes in any way; called by test_process_sweep.py.

As a program, for launchers, it is a run over recorded outputs: python -m tests.callbacks.sweep_run OUT PROCESSES NODES
"""

import os
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.stream import Stream
from oodlit.detectors import KNN, MSP, Energy, Mahalanobis, NNGuide, ReAct, ViM
from oodlit.recorded.from_arrays import recorded_parts
from oodlit.roles import Role
from oodlit.testing.problems import separated_problem
from tests.callbacks.support import make_module, make_trainer

ENDS = {
    "killed": "disappeared",
    "error": r"on \S+ failed: ValueError: the end",
    "asked": r"on \S+ failed: TerminatedError",
}
"""Ways in which a process ends, and what the others say of it."""


@dataclass(frozen=True)
class Cut:
    """How a run is cut.

    Args:
        processes: Number of processes, on all nodes together.
        nodes: Number of nodes.
        workers: Worker processes of each.
        batch_size: Images a batch.
        kill_at: At which batch of its own a process ends; 0 = never.
        end: How it does that: one of `ENDS`.
        victim: Which process that is.
        bank: What holds a copy of the bank, see `OODDetection`.
        resume: Whether the run may go on after an earlier start.
    """

    processes: int = 1
    nodes: int = 1
    workers: int = 0
    batch_size: int = 16
    kill_at: int = 0
    end: str = "killed"
    victim: int = 0
    bank: str = "auto"
    resume: bool = False


def recorded_run(sizes: tuple[int, int, int], out: Path, cut: Cut) -> None:
    """Detectors on recorded features and logits.

    Args:
        sizes: Images of the training, ID and OOD sets.
        out: Folder of the results.
        cut: How it is cut.
    """
    problem = separated_problem()
    parts = zip((problem.train, problem.id, problem.ood), sizes, strict=True)
    train, known, other = (outputs.select(slice(0, size)) for outputs, size in parts)
    given = [{"features": o.features, "logits": o.logits} for o in (train, known, other)]
    given[0]["labels"], given[1]["labels"] = train.labels, known.labels
    module, data = recorded_parts(
        id=given[1],
        ood={"far": {**given[2], "groups": torch.arange(len(other)) % 2, "class_names": ["a", "b"]}},
        train=given[0],
        head=problem.head,
        batch_size=cut.batch_size,
    )
    data.num_workers = cut.workers
    _predict(module, data, [MSP(), Energy(), Mahalanobis(), KNN(k=3), NNGuide(k=3), ReAct(), ViM()], out, cut)


def shard_run(folder: Path, out: Path, cut: Cut) -> None:
    """Detectors on the images of shards: "val" and "far" in a folder."""
    streams = [Stream(name, role, ShardSource(folder / name)) for name, role in (("val", Role.ID), ("far", Role.OOD))]
    data = OODDataModule(streams, transform=_to_tensor, batch_size=cut.batch_size, num_workers=cut.workers)
    _predict(make_module(), data, [MSP(), Energy()], out, cut)


def _to_tensor(image):
    from torchvision.transforms.functional import to_tensor

    return to_tensor(image)


def _predict(module, data, detectors, out: Path, cut: Cut) -> None:
    detection = OODDetection(
        detectors, output_dir=out, num_thumbnails=0, resume=cut.resume, keep_every_s=0.0, bank=cut.bank
    )
    strategy = "ddp" if cut.processes > 1 else "auto"
    devices = cut.processes // cut.nodes
    trainer = make_trainer(detection, devices=devices, num_nodes=cut.nodes, strategy=strategy)
    step, seen = module.predict_step, [0]

    def predict_step(*arguments, **named):
        seen[0] += 1
        if seen[0] == cut.kill_at and trainer.global_rank == cut.victim:
            if cut.end == "error":
                raise ValueError("the end of one process")
            os.kill(os.getpid(), signal.SIGKILL if cut.end == "killed" else signal.SIGTERM)
        return step(*arguments, **named)

    module.predict_step = predict_step
    trainer.predict(module, data, return_predictions=False)


SIZES = (50, 11, 7)
"""Of the sets of the program."""

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    recorded_run(SIZES, Path(sys.argv[1]), Cut(processes=int(sys.argv[2]), nodes=int(sys.argv[3]), batch_size=4))
