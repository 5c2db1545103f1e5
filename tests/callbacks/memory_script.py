"""Run by test_memory.py in a process of its own: peak memory of a run over many batches."""

import gc
import re
from pathlib import Path

import torch
from torch import nn

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.callbacks.recorded_run import run_recorded
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import (
    KNN,
    MSP,
    Cosine,
    Energy,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    ViM,
    fit,
)
from oodlit.detectors.contract.every import every_detector
from oodlit.detectors.contract.fitting import estimate_bytes, make_statistics
from oodlit.detectors.statistics import ClassMoments, FeatureBank, TrainSample
from oodlit.outputs import BackboneFacts, Head, Outputs
from oodlit.recorded import RecordedData, RecordedModule
from oodlit.recorded.rows import Rows, RowSource
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


class MadeRows(RowSource):
    """As many features as asked for, made when they are read."""

    width, num_classes = 64, 0

    def __init__(self, count: int, *, labelled: bool = True) -> None:
        self.count, self.labelled = count, labelled

    def __len__(self) -> int:
        return self.count

    def rows(self, start: int, stop: int) -> Rows:
        numbers = torch.arange(max(start, 0), min(stop, self.count))
        noise = torch.randn(len(numbers), self.width, generator=torch.Generator().manual_seed(start))
        none = torch.full_like(numbers, -1)
        features = (HEAD.weight[numbers % 10] + noise).relu_()
        return Rows(None, features, numbers % 10 if self.labelled else none, none, list(map(str, numbers.tolist())))


HEAD = Head(torch.randn(10, MadeRows.width, generator=torch.Generator().manual_seed(0)))


NINCO = (MSP, MaxLogit, Energy, KLMatching, Mahalanobis, RelativeMahalanobis, ViM, Cosine, RelativeCosine, ReAct)


def peak() -> float:
    """In MB. The highest mark of getrusage would be that of the process which started this one, where it was higher."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024


def stream_through_the_run(batches: int) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    streams = [Stream("val", Role.ID, Endless(BATCH, 10)), Stream("far", Role.OOD, Endless(BATCH * batches, 0))]
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


def stream_through_training(batches: int) -> None:
    """All detectors that apply and keep no bank, fitted through the callback; the sample is full after one batch."""
    TrainSample.default_rows = 2000
    streams = [
        Stream("train", Role.TRAIN, MadeRows(4096 * batches)),
        Stream("val", Role.ID, MadeRows(64)),
        Stream("far", Role.OOD, MadeRows(64, labelled=False)),
    ]
    applying = [
        d
        for d in every_detector({"nn_guide": {"bank_size": 500}})[0].values()
        if FeatureBank not in d.required_statistics
    ]
    run_recorded(RecordedModule(width=MadeRows.width, num_classes=0, head=HEAD), RecordedData(streams), applying)


def fit_as_announced(batches: int) -> float:
    """The detectors of NINCO but KNN; gives what is announced, in MB."""
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(200, 256, generator=generator))

    def outputs(_: int) -> Outputs:
        features = torch.randn(512, 256, generator=generator)
        return Outputs(head(features), features, torch.arange(512) % 200)

    detectors = [kind() for kind in NINCO]
    fit(detectors, map(outputs, range(batches)), head)
    facts = BackboneFacts(width=256, num_classes=200, num_train=512 * batches)
    return estimate_bytes(make_statistics(detectors), facts, detectors) / 2**20


PARTS = {
    "run": stream_through_the_run,
    "statistic": stream_through_a_statistic,
    "bank": stream_into_a_bank,
    "training": stream_through_training,
    "announced": fit_as_announced,
}


def main(name: str, batches: int) -> None:
    """Print the peak of the resident memory in MB before and after a part, and what the part gives."""
    torch.manual_seed(0)
    part = PARTS[name]
    part(20)
    gc.collect()  # metrics are parts of cycles: the first one would be counted beside the second
    before = peak()
    given = part(batches)
    print(before, peak(), *([] if given is None else [given]))
