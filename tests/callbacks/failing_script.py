"""Run by test_failing_processes.py: one of several processes, of which one fails at a given point.

Usage: python -m tests.callbacks.failing_script OUT WHAT VICTIM DEVICES STRATEGY NODES
"""

import dataclasses
import gc
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import torch.distributed as dist

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Energy, Mahalanobis
from oodlit.errors import LoggingError
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import Recorder, make_streams, make_trainer

FOREVER_S = 3600
AT = 15
"""The batch at which it happens."""


class Fails(MSP):
    """Fails in one process."""

    victim = -1

    def _score(self, outputs):
        if dist.get_rank() == self.victim:
            raise ValueError("the detector of one process")
        return super()._score(outputs)


class Data(OODDataModule):
    victim = -1

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if dist.get_rank() == self.victim:
            raise FileNotFoundError("no such disk")


class UnprintableError(Exception):
    """Fails itself where it is told."""

    def __str__(self) -> str:
        raise OSError("no words")


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no attributes."""

    code: int


def happen(what: str) -> None:
    """What happens in the backbone of one process."""
    if what == "unprintable":
        raise UnprintableError
    if what == "exit":
        sys.exit(3)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "asked":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise TypeError("the backbone of one process")


class Offline(Recorder):
    """A logger that cannot reach its server."""

    def log_metrics(self, metrics, step=None) -> None:
        raise ConnectionError("no network")


class Module(OODModule):
    """Something happens at one of the batches."""

    what, victim, seen = "", -1, 0

    def predict_step(self, *arguments, **named):
        self.seen += 1
        if self.seen == AT:
            is_victim = dist.get_rank() == self.victim
            if is_victim and self.what not in ("", "detector", "setup"):
                happen(self.what)
            if not is_victim and self.what == "asleep":
                time.sleep(FOREVER_S)
        return super().predict_step(*arguments, **named)


def after_an_error_of_its_own(out: Path) -> None:
    """The logger of process 0 fails when the run is over, which its program forgives; later, process 1 fails."""
    if os.environ["LOCAL_RANK"] == "0":
        try:
            run(out / "0", "", -1, 2, logger=Offline())
        except LoggingError:
            print("forgiven", flush=True)
    else:
        run(out / "0", "", -1, 2)
    run(out / "1", "", -1, 2)
    print("well", flush=True)
    run(out / "2", "backbone", 1, 2)


def leave_nothing_behind(out: Path) -> None:
    """Runs one after the other, in the same processes."""
    counts = []
    for number in range(3):
        run(out / str(number), "", -1, 2)
        deadline = time.monotonic() + 20
        while any(thread.name == "oodlit-peers" for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "threads go on"
            time.sleep(0.05)
        gc.collect()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[2] <= counts[0], counts


def main(out: Path, what: str, victim: int, devices: int, strategy: str, nodes: int) -> None:
    run(out, what, victim, devices, strategy=strategy, num_nodes=nodes)
    print("done", flush=True)


def run(out: Path, what: str, victim: int, devices: int, **options) -> None:
    module, data = Module(TinyConvNet(6), name="tiny"), Data(make_streams(), batch_size=4)
    module.what, module.victim = what, victim
    fails = Fails()
    fails.victim, data.victim = victim, victim if what == "setup" else -1
    detectors = [fails] if what == "detector" else [MSP(), Energy(), Mahalanobis()]
    detection = OODDetection(detectors, output_dir=out, resume=True, keep_every_s=0.0, num_thumbnails=0)
    trainer = make_trainer(detection, **({"devices": devices, "strategy": "ddp"} | options))
    trainer.predict(module, data, return_predictions=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
