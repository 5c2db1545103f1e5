"""Run by test_cache.py in several processes: record a cache, then read it.

Usage: python process_script.py DEVICES OUT
"""

import sys
from pathlib import Path

from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.recorded import FeatureCache, open_cache
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded.support import some_detectors


def main(devices: int, out: Path) -> None:
    options = {"devices": devices, "strategy": "ddp"}
    detection = OODDetection(some_detectors(), output_dir=out / "recorded", train_thresholds=True)
    trainer = make_trainer(detection, FeatureCache(out / "cache"), **options)
    trainer.predict(make_module(), OODDataModule(make_streams(), batch_size=7), return_predictions=False)
    trainer.strategy.barrier()
    module, data = open_cache(out / "cache", make_module(), OODDataModule(make_streams()))
    detection = OODDetection(some_detectors(), output_dir=out / "read")
    make_trainer(detection, **options).predict(module, data, return_predictions=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
