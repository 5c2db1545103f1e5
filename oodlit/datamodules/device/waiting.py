"""Rows of a batch that are still files, and their images from the workers' decoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodlit.datamodules.device.jpegs import Jpegs
from oodlit.datamodules.stream import Sample


@dataclass(frozen=True, eq=False)
class Waiting:
    """Rows of a batch whose files the main process decodes.

    Args:
        files: One file per row.
        samples: Their samples, without the files.
        rows: Their rows in the batch; other rows are already images.
    """

    files: Jpegs
    samples: tuple[Sample, ...]
    rows: tuple[int, ...]

    def sample(self, number: int) -> Sample:
        """A sample with its file, as read from its source."""
        return replace(self.samples[number], image=self.files.file(number).numpy().tobytes())


class ExactReading:
    """Reads the images of a batch again with `decode_image` and the original transform.

    Not a dataclass: Lightning would move its tensors to the device with every batch.

    Args:
        waiting: The files.
        rows: Row in the finished batch, by number of the file.
        read: From a sample to its exact image.
        level: How much the network's input grows if a pixel grows by 1 of 255.
    """

    def __init__(self, waiting: Waiting, rows: dict[int, int], read: Callable[[Sample], Tensor], level: Tensor) -> None:
        self.waiting, self.rows, self.read, self.level = waiting, rows, read, level

    def images(self, images: Tensor) -> Tensor:
        """Replace images that a device decoded with the exact ones."""
        exact = images.clone()
        for number, row in self.rows.items():
            exact[row] = self.read(self.waiting.sample(number)).to(exact.device, exact.dtype)
        return exact

    def deviation(self, images: Tensor, exact: Tensor) -> tuple[float, float]:
        """Largest and mean difference of pixels that a device decoded, in steps of 1 of 255."""
        rows = torch.tensor([*self.rows.values()])
        one, other = (values.cpu().double()[rows] for values in (images, exact))
        steps = (one - other).abs() / self.level.abs()
        return float(steps.max()), float(steps.mean())
