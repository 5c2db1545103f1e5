"""Run by test_processes.py in one or several processes: the same runs, results on disk.

Usage: python process_script.py DEVICES OUT
"""

import sys
import warnings
from pathlib import Path

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import KNN, MSP, Energy, Mahalanobis, RelativeMahalanobis, ViM
from tests.callbacks.support import make_module, make_streams, make_trainer


def streams_of(case: str):
    streams = make_streams(with_train=case != "train-free", num_ood=1 if case != "full" else None)
    if case == "train-free":  # two images in all: with three processes one gets no batch of anything
        streams = [s for s in streams if s.role is Role.OOD] + make_tiny_id()
    return streams


def make_tiny_id():
    from oodlit.datamodules.sources import MemorySource
    from oodlit.datamodules.stream import Stream

    val = next(s for s in make_streams() if s.role is Role.ID)
    return [Stream("val", Role.ID, MemorySource(list(val.source.read(0, 1))))]


def detectors_of(case: str) -> list:
    if case == "train-free":
        return [MSP(), Energy()]
    return [MSP(), Energy(), Mahalanobis(), RelativeMahalanobis(), ViM(), KNN(k=5)]


def main(devices: int, out: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    for case, workers in (("full", 0), ("full", 2), ("few", 0), ("train-free", 0)):
        folder = out / f"{case}-{workers}"
        detection = OODDetection(detectors_of(case), output_dir=folder, num_thumbnails=0)
        trainer = make_trainer(
            detection,
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            logger=CSVLogger(out, name="logs", version=f"{case}-{workers}"),
        )
        data = OODDataModule(streams_of(case), batch_size=4, num_workers=workers)
        trainer.predict(make_module(), data, return_predictions=False)
        assert detection.results is not None, f"rank {trainer.global_rank} has no results"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]))
