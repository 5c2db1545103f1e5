"""Run by test_failing_processes.py: one of several processes, of which one fails at a given point.

Usage: python -m tests.callbacks.failing_script OUT WHAT VICTIM DEVICES STRATEGY NODES
"""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch.distributed as dist

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Energy, Mahalanobis
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import make_streams, make_trainer

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


class Module(OODModule):
    """Something happens at one of the batches."""

    what, victim, seen = "", -1, 0

    def predict_step(self, *arguments, **named):
        self.seen += 1
        if self.seen == AT:
            is_victim = dist.get_rank() == self.victim
            if is_victim and self.what in ("backbone", "asleep"):
                raise TypeError("the backbone of one process")
            if is_victim and self.what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if not is_victim and self.what == "asleep":
                time.sleep(FOREVER_S)
        return super().predict_step(*arguments, **named)


def main(out: Path, what: str, victim: int, devices: int, strategy: str, nodes: int) -> None:
    module, data = Module(TinyConvNet(6), name="tiny"), Data(make_streams(), batch_size=4)
    module.what, module.victim = what, victim
    fails = Fails()
    fails.victim, data.victim = victim, victim if what == "setup" else -1
    detectors = [fails] if what == "detector" else [MSP(), Energy(), Mahalanobis()]
    detection = OODDetection(detectors, output_dir=out, resume=True, keep_every_s=0.0, num_thumbnails=0)
    trainer = make_trainer(detection, devices=devices, num_nodes=nodes, strategy=strategy)
    trainer.predict(module, data, return_predictions=False)
    print("done", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
