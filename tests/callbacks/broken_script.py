"""Run by test_processes.py: two processes, of which Lightning starts one; in a second run, one meets a broken image.

Usage: python -m tests.callbacks.broken_script RANK OUT
"""

import sys
import warnings
from pathlib import Path

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, Mahalanobis
from tests.callbacks.process_script import detectors_of
from tests.callbacks.support import make_module, make_streams, make_trainer


def predict(detection: OODDetection, streams: list[Stream]) -> None:
    trainer = make_trainer(detection, devices=2, strategy="ddp")
    trainer.predict(make_module(), OODDataModule(streams, batch_size=4), return_predictions=False)


def main(rank: int, out: Path) -> None:
    streams = make_streams()
    predict(OODDetection(detectors_of("full"), output_dir=out, num_thumbnails=0), streams)
    far = next(s for s in streams if s.role is Role.OOD)
    samples = list(far.source.read(0, len(far)))
    broken = 0 if rank == 0 else -1  # ranges are contiguous: the first image is of rank 0, the last one of rank 1
    samples[broken] = Sample(samples[broken].key, samples[broken].image, group=0, error="broken")
    streams = [s for s in streams if s.role is not Role.OOD]
    streams.append(Stream("far", Role.OOD, MemorySource(samples), far.class_names))
    predict(OODDetection([MSP(), Mahalanobis()]), streams)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]))
