"""Run by test_processes.py in one or several processes: the same runs, results on disk."""

from pathlib import Path

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import KNN, MSP, Energy, Mahalanobis, RelativeMahalanobis, ViM
from tests.callbacks.support import make_module, make_streams, make_trainer

LOGGED = ("full-2", "train-free-0")
"""Runs with a logger, which draws figures: one with workers, and one in which a process may get no batch."""


def streams_of(case: str, out: Path):
    if case == "seven":  # 7 samples, batch 2
        return [make_stream("val", Role.ID, 7), make_stream("far", Role.OOD, 7)]
    if case == "shards":  # no collective inside the data loop: one process may get a single shard
        return [read_shards(out / "shards" / name, name, role) for name, role in (("val", Role.ID), ("far", Role.OOD))]
    streams = make_streams(with_train=case != "train-free", num_ood=1 if case != "full" else None)
    if case == "train-free":  # two images in all: with three processes one gets no batch of anything
        streams = [s for s in streams if s.role is Role.OOD] + make_tiny_id()
    return streams


def make_stream(name: str, role: Role, count: int):
    from oodlit.datamodules.sources import MemorySource
    from oodlit.datamodules.stream import Stream

    samples = next(s for s in make_streams() if s.role is role).source.read(0, count)
    return Stream(name, role, MemorySource(list(samples)))


def read_shards(folder: Path, name: str, role: Role):
    from oodlit.datamodules.shards.reader import ShardSource
    from oodlit.datamodules.stream import Stream

    return Stream(name, role, ShardSource(folder))


def make_tiny_id():
    from oodlit.datamodules.sources import MemorySource
    from oodlit.datamodules.stream import Stream

    val = next(s for s in make_streams() if s.role is Role.ID)
    return [Stream("val", Role.ID, MemorySource(list(val.source.read(0, 1))))]


def detectors_of(case: str) -> list:
    if case in ("train-free", "seven", "shards"):
        return [MSP(), Energy()]
    return [MSP(), Energy(), Mahalanobis(), RelativeMahalanobis(), ViM(), KNN(k=5)]


def to_tensor(image):
    from torchvision.transforms.functional import to_tensor as convert

    return convert(image)


def main(devices: int, out: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    cases = (("full", 0), ("full", 2), ("few", 0), ("train-free", 0), ("seven", 0), ("shards", 0), ("shards", 2))
    for case, workers in cases:
        folder = out / f"{case}-{workers}"
        detection = OODDetection(detectors_of(case), output_dir=folder, num_thumbnails=0)
        trainer = make_trainer(
            detection,
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            logger=CSVLogger(out, name="logs", version=folder.name) if folder.name in LOGGED else False,
        )
        streams, batch_size = streams_of(case, out), 2 if case in ("seven", "shards") else 4
        transform = to_tensor if case == "shards" else None
        data = OODDataModule(streams, transform=transform, batch_size=batch_size, num_workers=workers)
        trainer.predict(make_module(), data, return_predictions=False)
        assert detection.results is not None, f"rank {trainer.global_rank} has no results"
