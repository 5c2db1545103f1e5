"""Gates of a network that takes maxima, and their programs, over images with pixels that are no numbers.

Called with a folder. Types are not checked in it, which `torch.export` would trace.
"""

import json
import math
import sys
from pathlib import Path

import onnxruntime
import torch
from torch import nn

from oodlit import Gate, OODModule
from oodlit.detectors import Energy, MaxLogit, ReAct
from oodlit.errors import InvalidArgumentError
from tests.gate.support import digits, run

NAMES = ("energy", "max_logit", "react")


class Pooled(nn.Module):
    """The maxima of a convolution before the head, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(72, 7)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                steps = torch.arange(parameter.numel(), dtype=torch.float64) + 13 * number
                parameter.copy_((steps * 0.754877666).sin().reshape(parameter.shape) / 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def ask(file: Path, images: torch.Tensor) -> dict[str, list[float]]:
    if file.suffix == ".pt2":
        found = torch.export.load(file).module()(images)  # with gradients switched on
        assert not any(value.requires_grad for value in found.values())
        return {name: value.tolist() for name, value in found.items()}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {"images": images.numpy()})
    return {name: value.tolist() for name, value in zip(names, values, strict=True)}


def main(folder: Path) -> None:
    data = digits(folder / "shards", max_images=64)
    run(OODModule(Pooled(), transform=data.transform), data, [Energy(), MaxLogit(), ReAct()], folder / "run")
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    told: dict[str, dict[str, object]] = {}
    for name in NAMES:
        gate = Gate.load(folder / "run", detector=name, model=Pooled(), tpr=1)
        for kind in ("pt2", "onnx"):
            file = folder / f"{name}.{kind}"
            gate.export(file)
            told[file.name] = {"clean": ask(file, images)}
            for value in (math.nan, math.inf, -math.inf):
                broken = images.clone()
                broken[0, 1, 4, 4], broken[1] = value, value
                told[file.name][str(value)] = ask(file, broken)
                try:
                    gate(broken[0])
                except InvalidArgumentError as error:
                    told[file.name][f"{value} in Python"] = str(error)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
