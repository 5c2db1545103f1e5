"""A small run to make gates of: digits, a network of a moment, a few detectors."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from oodlit import OODModule
from oodlit.callbacks import OODDetection
from oodlit.datamodules import DigitsBenchmark, OODDataModule, Stream
from oodlit.detectors import Detector
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import FindingWarning


class TinyNetwork(nn.Module):
    """A convolution and a head for 8 x 8 pixels; its weights follow from fixed arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(72, 7)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                steps = torch.arange(parameter.numel(), dtype=torch.float64) + 13 * number
                parameter.copy_((steps * 0.754877666).sin().reshape(parameter.shape) / 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def digits(
    root: Path, *, streams: Sequence[str] = ("digits_train", "digits_val", "digits_near"), max_images: int | None = None
) -> OODDataModule:
    """The digits, of some streams."""
    data = DigitsBenchmark(root, per_test=2)
    chosen = [stream for stream in data.streams if stream.name in streams]
    return OODDataModule(chosen, transform=data.transform, batch_size=64, max_images=max_images)


def stream(root: Path, name: str) -> Stream:
    """One stream of the digits."""
    return DigitsBenchmark(root, per_test=2).stream(name)


def run(module: OODModule, data: OODDataModule, detectors: Sequence[Detector], folder: Path, **trainer: Any) -> None:
    """Evaluate into a folder."""
    predict(module, data, OODDetection(detectors, output_dir=folder, num_thumbnails=0), **trainer)


def predict(module: OODModule, data: OODDataModule, detection: pl.Callback, **trainer: Any) -> None:
    """Run a callback quietly."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    runner = pl.Trainer(accelerator="cpu", callbacks=[detection], **quiet, **trainer)
    with warnings.catch_warnings():
        for kind in (FindingWarning, UndefinedMetricWarning):  # nobody has trained the network
            warnings.simplefilter("ignore", kind)
        runner.predict(module, data, return_predictions=False)
