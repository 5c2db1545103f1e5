"""Run by test_pools.py in one or several processes: runs with a pool, results on disk."""

from pathlib import Path

import torch

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import OODDataModule, severity_pool
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, Energy, Entropy
from oodlit.testing.problems import separated_problem
from tests.callbacks.support import make_module, make_streams, make_trainer

CASES = {"batches of 5": {}, "permuted": {"permuted": True, "batch_size": 7}, "few": {"count": 8, "num_classes": 6}}
NUM_CLASSES, COUNT = 23, 20


def samples(num_classes: int = NUM_CLASSES, count: int = COUNT) -> list[Sample]:
    """Images between ID and OOD, by class; two classes have the same images and tie."""
    problem, generator = separated_problem(), torch.Generator().manual_seed(3)
    found = []
    for c in range(num_classes):
        for i in range(count if c % 5 else count + 4):
            near, far = problem.id.images[(7 * c + i) % 30], problem.ood.images[(5 * c + i) % 30]
            noise = 0.05 * torch.rand(near.shape, generator=generator)
            share = c / num_classes
            found.append(Sample(f"{c:02d}/{i:03d}", share * near + (1 - share) * far + noise, group=c))
    return found


def make_pool(*, permuted: bool = False, **sizes: int) -> Stream:
    """A pool in memory; the order of its images is the only difference that `permuted` makes."""
    found = samples(**sizes)
    if permuted:
        found = [found[i] for i in torch.randperm(len(found), generator=torch.Generator().manual_seed(1)).tolist()]
    names = tuple(f"class {c}" for c in range(1 + max(sample.group for sample in found)))
    return severity_pool(Stream("pool", Role.OOD, MemorySource(found), names), test_share=0.4)


def main(devices: int, out: Path) -> None:
    for case, options in CASES.items():
        sizes = {name: value for name, value in options.items() if name != "batch_size"}
        detection = OODDetection([MSP(), Energy(), Entropy()], output_dir=out / case, num_thumbnails=0)
        trainer = make_trainer(detection, devices=devices, strategy="ddp" if devices > 1 else "auto")
        streams = [s for s in make_streams(with_train=False) if s.role is Role.ID] + [make_pool(**sizes)]
        data = OODDataModule(streams, batch_size=options.get("batch_size", 5))
        trainer.predict(make_module(), data, return_predictions=False)
        assert detection.results is not None, f"rank {trainer.global_rank} has no results"
