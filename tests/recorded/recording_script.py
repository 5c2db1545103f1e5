"""Run by test_recording.py: a recording that kills its own process at a batch, or resumes after that.

Usage: python -m tests.recorded.recording_script DEVICES FOLDER KILL_AT BATCH_SIZE WORKERS (KILL_AT 0 = not at all)
"""

import os
import signal
import sys
import warnings
from pathlib import Path

from oodlit.datamodules.datamodule import OODDataModule
from oodlit.recorded import FeatureCache
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import tiny_stream


def main(devices: int, folder: Path, kill_at: int, batch_size: int, workers: int) -> None:
    module, seen = make_module(), []
    original = module.predict_step

    def predict_step(batch, *others):
        if len(seen) + 1 == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(len(batch["key"]))
        return original(batch, *others)

    module.predict_step = predict_step
    data = OODDataModule([*make_streams(), tiny_stream()], batch_size=batch_size, num_workers=workers)
    cache = FeatureCache(folder, keep_every_s=0.0)
    trainer = make_trainer(cache, devices=devices, strategy="ddp" if devices > 1 else "auto")
    trainer.predict(module, data, return_predictions=False)
    assert (folder / "cache.json").is_file()  # on every process
    print("images", sum(seen), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
