"""Small networks as `oodlit.outputs.Model`, with plain arithmetic weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class PlainModel:
    """A network that knows its normalisation; counts its forward passes."""

    network: nn.Module
    std: Tensor
    passes: int = 0

    def logits(self, images: Tensor) -> Tensor:
        self.passes += 1
        return self.network(images)

    def features(self, images: Tensor) -> Tensor:
        self.passes += 1
        return self.network.features(images)

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        return self.network.head(feature_map.mean(dim=(2, 3)))


def weights(*shape: int) -> Tensor:
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(1.0, n + 1)).view(shape)


class Conv(nn.Module):
    """Convolution, optional dropouts, global mean, linear head."""

    def __init__(self, *, channels: int = 3, width: int = 6, classes: int = 4, dropout: tuple[nn.Module, ...] = ()):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drops = nn.Sequential(*dropout)
        self.head = nn.Linear(width, classes)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(weights(*parameter.shape) / (1 + i))
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        return self.drops(torch.relu(self.norm(self.conv(images)))).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))
