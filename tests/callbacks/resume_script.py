"""Run by test_resume.py: a run that kills its own process at a forward pass, or goes on after that.

Usage: python -m tests.callbacks.resume_script DEVICES OUT KILL_AT (0 = not at all)
"""

import os
import signal
import sys
import warnings
from pathlib import Path

import torch

from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.callbacks.test_resume import some_detectors


def main(devices: int, out: Path, kill_at: int) -> None:
    module, seen = make_module(), [0]
    original = module.predict_step

    def predict_step(*arguments, **named):
        seen[0] += 1
        if seen[0] == kill_at // devices:
            if devices > 1:  # else the slower process may be killed any number of batches earlier
                torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    module.predict_step = predict_step
    detection = OODDetection(some_detectors(), output_dir=out, resume=True, keep_every_s=0.0, num_thumbnails=0)
    trainer = make_trainer(detection, devices=devices, strategy="ddp" if devices > 1 else "auto")
    trainer.predict(module, OODDataModule(make_streams(), batch_size=4), return_predictions=False)
    if trainer.is_global_zero:
        print("passes", seen[0] * devices, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
