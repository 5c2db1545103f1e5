"""Run by test_memory.py in a process of its own: peak memory of a run over many batches.

Usage: python memory_script.py run|statistic|bank BATCHES
prints the peak of the resident memory in MB before and after.
"""

import gc
import resource
import sys
import warnings

import torch
from torch import nn

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import KNN, MSP, Energy, fit
from oodlit.detectors.statistics import ClassMoments
from oodlit.outputs import Outputs
from tests.callbacks.support import make_trainer

BATCH, WIDTH = 64, 2048


class Endless:
    """As many images as asked for; none is held."""

    def __init__(self, count: int, classes: int) -> None:
        self.count, self.classes = count, classes

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int):
        for i in range(start, stop):
            generator = torch.Generator().manual_seed(i)
            label = i % self.classes if self.classes else -1
            yield Sample(str(i), torch.rand(3, 2, 2, generator=generator), label=label)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream_through_the_run(batches: int) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    streams = [
        Stream("val", Role.ID, Endless(BATCH, 10)),
        Stream("far", Role.OOD, Endless(BATCH * batches, 0)),
    ]
    trainer = make_trainer(OODDetection([MSP(), Energy()]))
    data = OODDataModule(streams, batch_size=BATCH)
    trainer.predict(OODModule(network), data, return_predictions=False)


def stream_through_a_statistic(batches: int) -> None:
    moments = ClassMoments()
    features, labels = torch.rand(BATCH, WIDTH), torch.arange(BATCH) % 10
    for i in range(batches):
        moments.update(Outputs(features=features + i, labels=labels))


def stream_into_a_bank(batches: int) -> None:
    rows = (Outputs(features=torch.rand(BATCH, WIDTH)) for _ in range(batches))
    fit([KNN(k=1)], rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    parts = {"run": stream_through_the_run, "statistic": stream_through_a_statistic, "bank": stream_into_a_bank}
    part = parts[sys.argv[1]]
    part(20)
    gc.collect()  # metrics are parts of cycles: the first one would be counted beside the second
    before = peak()
    part(int(sys.argv[2]))
    print(before, peak())
