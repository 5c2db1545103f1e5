"""Rows of a batch that are still files, and what their images are by the exact reading."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodlit.datamodules.device.jpegs import Jpegs
from oodlit.datamodules.stream import Sample


@dataclass(frozen=True, eq=False)
class Waiting:
    """Rows of a batch whose images the main process decodes.

    Args:
        files: One file a row.
        samples: Their samples, without the files.
        rows: Their rows in the batch; the other rows are images already.
    """

    files: Jpegs
    samples: tuple[Sample, ...]
    rows: tuple[int, ...]

    def sample(self, number: int) -> Sample:
        """A sample with its file, as its source gave it."""
        return replace(self.samples[number], image=self.files.file(number).numpy().tobytes())


class ExactReading:
    """What the images of a batch are by `decode_image` and the transform itself.

    No dataclass: Lightning would move its tensors to the device with every batch.

    Args:
        waiting: The files.
        rows: By number of the file, its row in the finished batch.
        read: From a sample to its image, exactly.
        level: What a pixel that is larger by 1 of 255 adds to the network's input.
    """

    def __init__(self, waiting: Waiting, rows: dict[int, int], read: Callable[[Sample], Tensor], level: Tensor) -> None:
        self.waiting, self.rows, self.read, self.level = waiting, rows, read, level

    def images(self, images: Tensor) -> Tensor:
        """The same batch with the exact images in place of those that a device decoded."""
        exact = images.clone()
        for number, row in self.rows.items():
            exact[row] = self.read(self.waiting.sample(number)).to(exact.device, exact.dtype)
        return exact

    def deviation(self, images: Tensor, exact: Tensor) -> tuple[float, float]:
        """Largest and mean difference of the pixels that a device decoded, in steps of 255."""
        rows = torch.tensor([*self.rows.values()])
        one, other = (values.cpu().double()[rows] for values in (images, exact))
        steps = (one - other).abs() / self.level.abs()
        return float(steps.max()), float(steps.mean())
