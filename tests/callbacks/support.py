"""A small run on the tiny network: streams in memory, every image known."""

import pytorch_lightning as pl
import torch

from oodlit import OODModule, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.testing.backbones import TinyConvNet
from oodlit.testing.problems import separated_problem

OOD_CLASSES = ("first", "second", "third")


def make_module(**options) -> OODModule:
    return OODModule(TinyConvNet(6, dropout=0.2, **options), name="tiny")


def label_of(outputs, i: int, role: Role) -> int:
    if role not in (Role.TRAIN, Role.ID, Role.SHIFT):
        return -1
    # One ID image bears another label, so that the classifier is not always right.
    return (int(outputs.labels[i]) + (role is Role.ID and i == 29)) % 6


def make_streams(*, with_train: bool = True, num_ood: int | None = None) -> list[Stream]:
    problem = separated_problem()
    parts = {
        "train": (problem.train, Role.TRAIN),
        "val": (problem.id, Role.ID),
        "far": (problem.ood, Role.OOD),
        "tests": (problem.ood.select(slice(0, 8)), Role.UNIT_TEST),
        "shifted": (problem.id.select(slice(0, 12)), Role.SHIFT),
    }
    streams = []
    for name, (outputs, role) in parts.items():
        if role is Role.TRAIN and not with_train:
            continue
        stop = num_ood if role is Role.OOD and num_ood else len(outputs)
        samples = [
            Sample(
                f"{i:04d}",
                # An exact copy of an ID image would sit on the threshold, where rounding decides.
                outputs.images[i] * (0.9 if role is Role.SHIFT else 1.0),
                label=label_of(outputs, i, role),
                group=i % 3 if role is Role.OOD else (i % 2 if role in (Role.UNIT_TEST, Role.SHIFT) else -1),
            )
            for i in range(stop)
        ]
        names = {Role.OOD: OOD_CLASSES, Role.UNIT_TEST: ("black", "white"), Role.SHIFT: ("blur", "noise")}
        streams.append(Stream(name, role, MemorySource(samples), names.get(role, ())))
    return streams


def make_trainer(*callbacks: pl.Callback, **options) -> pl.Trainer:
    return pl.Trainer(
        **(
            {
                "accelerator": "cpu",
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "callbacks": list(callbacks),
            }
            | options
        )
    )


def run(detectors, *, streams=None, module=None, batch_size: int = 16, num_workers: int = 0, trainer=None, **options):
    """One `trainer.predict`; returns the callback."""
    detection = OODDetection(detectors, **options)
    data = OODDataModule(streams or make_streams(), batch_size=batch_size, num_workers=num_workers)
    predict = make_trainer(detection, **(trainer or {})).predict
    predict(module or make_module(), data, return_predictions=False)
    return detection


def stream(name, role, count=4, *, broken=(), label=None, group=-1, names=(), image=None):
    generator = torch.Generator().manual_seed(len(name) + count)
    samples = [
        Sample(
            str(i),
            torch.rand(3, 8, 8, generator=generator) if image is None else image,
            label=label if label is not None else (i % 6 if role in (Role.TRAIN, Role.ID, Role.SHIFT) else -1),
            group=group,
            error="broken" if i in broken else None,
        )
        for i in range(count)
    ]
    return Stream(name, role, MemorySource(samples), names)


def predict(detectors, streams, *, module=None, on_error="raise", transform=None, trainer=None, **options):
    detection = OODDetection(detectors, **options)
    data = OODDataModule(streams, batch_size=2, on_error=on_error, transform=transform)
    make_trainer(detection, **(trainer or {})).predict(module or make_module(), data, return_predictions=False)
    return detection


class CountingNet(TinyConvNet):
    """Remembers how often every image was forwarded."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[bytes] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += [image.numpy().tobytes() for image in images.detach().float().cpu()]
        return super().forward(images)


class Recorder(pl.loggers.Logger):
    """Has the interface of W&B's logger and keeps what it is given."""

    name, version = "recorder", "0"

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[dict[str, float], int]] = []
        self.settings: list[dict[str, str | float]] = []
        self.saved = 0

    def log_hyperparams(self, params=None, *_args, **_kwargs) -> None:
        self.settings.append(dict(params or {}))

    def log_metrics(self, metrics, step=None) -> None:
        self.logged.append((dict(metrics), step))

    def save(self) -> None:
        self.saved += 1
