"""`oodlit evaluate --dry_run`: what a run would read and compute, and nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from oodlit.cli.main import main
from oodlit.cli.running.dry_run import describe_run
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.detectors import KNN, MSP, ODIN, ViM
from oodlit.module import OODModule
from oodlit.roles import Role


class Net(nn.Module):
    """Two classes of 3 x 4 x 4 images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(48, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


def stream(name: str, role: Role, n: int, *, names: tuple[str, ...] = ()) -> Stream:
    generator = torch.Generator().manual_seed(n)
    images = [torch.rand(3, 4, 4, generator=generator) for _ in range(n)]
    is_known = role in (Role.ID, Role.TRAIN)
    samples = [
        Sample(f"{i:03d}", image, label=i % 2 if is_known else -1, group=-1 if is_known else i % 2)
        for i, image in enumerate(images)
    ]
    return Stream(name, role, MemorySource(samples), names)


@pytest.fixture
def data() -> OODDataModule:
    streams = [
        stream("train", Role.TRAIN, 40, names=("cat", "dog")),
        stream("val", Role.ID, 20, names=("cat", "dog")),
        stream("near", Role.OOD, 12, names=("fox", "wolf")),
    ]
    return OODDataModule(streams, batch_size=4)


def lines(data: OODDataModule, processes: int = 1) -> Iterator[str]:
    detectors = {"msp": MSP(), "knn": KNN(), "odin": ODIN(), "vim": ViM(dim=10)}
    module = OODModule(Net(), transform=None)
    return describe_run(module, data, detectors, device="cpu", processes=processes)


def test_every_stream_shows_its_first_image(data: OODDataModule) -> None:
    text = "\n".join(lines(data))
    assert "val: id, 20 images\n  first image: val/000, label 0 (cat)\n  transformed: 3 x 4 x 4, torch.float32" in text
    assert "train: train, 40 images\n  first image: train/000, label 0 (cat)" in text
    assert "near: ood, 12 images\n  first image: near/000, no label, group 0 (fox)" in text
    assert "transform: None" in text
    assert "detectors applicable to Net: 4 of 4\n" in text


def test_memory_and_passes(data: OODDataModule) -> None:
    *_, memory, measured, times = lines(data, processes=2)
    assert "batch of 4 images" in memory
    assert "forward pass" in measured
    passes = 40 + 32 + 2 * 32  # training and test images, and two more per test image for ODIN
    assert f"for 72 images and {passes} forward passes (0 workers, 2 processes)" in times


def test_detectors_that_do_not_apply_are_named(data: OODDataModule) -> None:
    without = OODDataModule([one for one in data.streams if one.role is not Role.TRAIN], batch_size=4)
    text = "\n".join(lines(without))
    assert "Not applicable: KNN, ViM - need training images for the fit" in text
    assert "detectors applicable to Net: 2 of 4\n" in text
    assert "for 32 images" in text


def test_a_first_batch_without_a_usable_image_is_reported_with_the_reasons(data: OODDataModule) -> None:
    bad = Stream("far", Role.OOD, MemorySource([Sample(str(i), b"no image") for i in range(2)]))
    module = OODDataModule([*data.streams, bad], on_error="skip")
    text = "\n".join(lines(module))
    assert re.search("far: ood, 2 images\n  no image of the first batch can be used: far/0: [^;]+; far/1: ", text)


def test_the_command_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--backbone", f"{__name__}.Net", "--weights", "none", "--data", "DigitsBenchmark", "--data.per_test=2"]
    words += ["--detectors=[MSP]", "--accelerator", "cpu", "--out", str(tmp_path / "out"), "--dry_run"]
    assert main(["evaluate", *words]) == 2  # the digits are larger than this network accepts
    captured = capsys.readouterr()
    assert "digits_near: ood" in captured.out
    assert "failed on 8 images of shape" in captured.err
    assert not (tmp_path / "out").exists()
    features = tmp_path / "features.yaml"
    features.write_text("{}")
    assert main(["evaluate", "--features", str(features), "--dry_run"]) == 2
    assert "--features replaces the network and the images; omit --dry_run" in capsys.readouterr().err
