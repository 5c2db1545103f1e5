"""Tiny networks that each show one trait of real backbones, for images of shape (batch, 3, 8, 8)."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from oodlit.testing.backbones import TinyConvNet, fill_arithmetic_


class TinyHeadlessNet(nn.Sequential):
    """A backbone without classifier: its output are the features."""

    num_features = TinyConvNet.num_features

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        fill_arithmetic_(self)


class TinyConvolutionalClassifier(nn.Sequential):
    """The classifier is a 1 x 1 convolution whose output is flattened, as in BiT."""

    def __init__(self, num_classes: int = 6) -> None:
        body = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        super().__init__(OrderedDict(body=body, fc=nn.Conv2d(16, num_classes, 1), flatten=nn.Flatten()))
        fill_arithmetic_(self)


class TinyDistilledNet(nn.Module):
    """The logits are the mean of two linear heads with different inputs, as in distilled DeiT."""

    def __init__(self, num_classes: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.Tanh())
        self.head = nn.Linear(16, num_classes)
        self.head_dist = nn.Linear(16, num_classes)
        fill_arithmetic_(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        tokens = self.body(images).flatten(2)
        logits: Tensor = (self.head(tokens[..., 0]) + self.head_dist(tokens[..., 1])) / 2
        return logits


class TinyImageTower(nn.Module):
    """Embeddings and local tokens, as from a vision transformer with `LocalTokens`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 16, 4, stride=4)
        fill_arithmetic_(self)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (batch, 16), and tokens (batch, tokens, 16)."""
        tokens = self.body(images).flatten(2).transpose(1, 2)
        return tokens.tanh().mean(dim=1), tokens


class TinyHiddenHeadNet(nn.Module):
    """No single linear layer gives the logits: the last one is followed by a nonlinear map."""

    def __init__(self, num_classes: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(16, num_classes)
        fill_arithmetic_(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, squashed."""
        logits: Tensor = 5 * torch.tanh(self.head(self.body(images)))
        return logits
