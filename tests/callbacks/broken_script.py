"""Run by test_processes.py in two processes, one of which meets a broken image.

Usage: python broken_script.py RANK
"""

import sys
import warnings

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, Mahalanobis
from tests.callbacks.support import make_module, make_streams, make_trainer


def main(rank: int) -> None:
    streams = make_streams()
    far = next(s for s in streams if s.role is Role.OOD)
    samples = list(far.source.read(0, len(far)))
    broken = 0 if rank == 0 else -1  # ranges are contiguous: the first image is of rank 0, the last one of rank 1
    samples[broken] = Sample(samples[broken].key, samples[broken].image, group=0, error="broken")
    others = [s for s in streams if s.role is not Role.OOD]
    data = OODDataModule([*others, Stream("far", Role.OOD, MemorySource(samples), far.class_names)], batch_size=4)
    trainer = make_trainer(OODDetection([MSP(), Mahalanobis()]), devices=2, strategy="ddp")
    trainer.predict(make_module(), data, return_predictions=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]))
