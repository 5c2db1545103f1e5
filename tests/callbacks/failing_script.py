"""Run by test_failing_processes.py: one of several processes, of which one fails at a given point.

Usage: python -m tests.callbacks.failing_script OUT WHAT VICTIM DEVICES STRATEGY NODES
"""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Energy, Mahalanobis
from tests.callbacks.support import make_module, make_streams, make_trainer

FOREVER_S = 3600


class Fails(MSP):
    """Fails on test images, in one process."""

    victim = False

    def _score(self, outputs):
        if self.victim:
            raise ValueError("the detector of one process")
        return super()._score(outputs)


class Data(OODDataModule):
    victim = False

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.victim:
            raise FileNotFoundError("no such disk")


def main(out: Path, what: str, victim: int, devices: int, strategy: str, nodes: int) -> None:
    module, data = make_module(), Data(make_streams(), batch_size=4)
    detectors = [Fails()] if what == "detector" else [MSP(), Energy(), Mahalanobis()]
    detection = OODDetection(detectors, output_dir=out, resume=True, keep_every_s=0.0, num_thumbnails=0)
    trainer = make_trainer(detection, devices=devices, num_nodes=nodes, strategy=strategy)
    step, seen = module.predict_step, [0]

    def predict_step(*arguments, **named):
        is_victim, seen[0] = trainer.global_rank == victim, seen[0] + 1
        Fails.victim = is_victim
        if seen[0] == 15:
            if is_victim and what in ("backbone", "asleep"):
                raise TypeError("the backbone of one process")
            if is_victim and what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if not is_victim and what == "asleep":
                time.sleep(FOREVER_S)
        return step(*arguments, **named)

    module.predict_step = predict_step
    Data.victim = what == "setup" and int(os.environ.get("LOCAL_RANK", "0")) == victim
    trainer.predict(module, data, return_predictions=False)
    print("done", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
