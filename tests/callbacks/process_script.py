"""Run by test_processes.py in one or several processes: the same runs, results on disk."""

from pathlib import Path

import torch

from oodlit import OODModule, Role
from oodlit.backbones.clip import ZeroShotClassifier
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import (
    CSP,
    GLMCM,
    KNN,
    MCM,
    MSP,
    SIRC,
    Combined,
    Energy,
    Mahalanobis,
    NegLabel,
    RelativeMahalanobis,
    ViM,
)
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.detectors.support import NEGATIVE_WORDS
from tests.networks import TinyImageTower

LOGGED = ("full-2", "train-free-0")
"""Runs with a logger, which draws figures: one with workers, and one in which a process may get no batch."""


def streams_of(case: str, out: Path):
    if case in ("seven", "zero-shot"):  # 7 samples, batch 2
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
    if case == "zero-shot":
        return [MCM(), GLMCM(), NegLabel(**NEGATIVE_WORDS), CSP(**NEGATIVE_WORDS)]
    alone = [MSP(), Energy(), Mahalanobis(), RelativeMahalanobis(), ViM(), KNN(k=5)]
    return [*alone, Combined([Mahalanobis(), Energy(), KNN(k=5)]), SIRC(s2=KNN(k=5))]


def module_of(case: str) -> OODModule:
    if case != "zero-shot":
        return make_module()
    concepts = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    return OODModule(ZeroShotClassifier(TinyImageTower(), concepts), head="classifier", name="tiny CLIP")


def to_tensor(image):
    from torchvision.transforms.functional import to_tensor as convert

    return convert(image)


def main(devices: int, out: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    cases = (("full", 0), ("full", 2), ("few", 0), ("train-free", 0), ("seven", 0), ("shards", 0), ("shards", 2))
    cases += (("zero-shot", 0),)
    for case, workers in cases:
        folder = out / f"{case}-{workers}"
        detection = OODDetection(detectors_of(case), output_dir=folder, num_thumbnails=0)
        trainer = make_trainer(
            detection,
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            logger=CSVLogger(out, name="logs", version=folder.name) if folder.name in LOGGED else False,
        )
        streams, batch_size = streams_of(case, out), 2 if case in ("seven", "shards", "zero-shot") else 4
        transform = to_tensor if case == "shards" else None
        data = OODDataModule(streams, transform=transform, batch_size=batch_size, num_workers=workers)
        trainer.predict(module_of(case), data, return_predictions=False)
        assert detection.results is not None, f"rank {trainer.global_rank} has no results"
