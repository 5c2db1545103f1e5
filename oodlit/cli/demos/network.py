"""A small convolutional network for 8 x 8 digits, and its loss."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """Three convolutions, a global mean, dropout and a linear head named "head". Features are non-negative.

    It has the two methods of timm's networks, so that detectors of the last feature map apply as well.

    Args:
        num_classes: Number of classes.
        width: Number of features. Default 64.

    Example:
        >>> SmallNetwork(7)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 7])
    """

    def __init__(self, num_classes: int, *, width: int = 64) -> None:
        super().__init__()
        self.num_features = width
        self.blocks = nn.Sequential(
            block(3, width // 2), block(width // 2, width), nn.MaxPool2d(2), block(width, width)
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(width, num_classes)

    def forward_features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels y x"]:
        """Return the feature map of the last block."""
        feature_map: Tensor = self.blocks(images)
        return feature_map

    def forward_head(
        self, feature_map: Float[Tensor, "batch channels y x"], pre_logits: bool = False
    ) -> Float[Tensor, "batch out"]:
        """Return logits of a feature map, or the features before them."""
        features: Tensor = self.pool(feature_map)
        logits: Tensor = features if pre_logits else self.head(features)
        return logits

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits."""
        return self.forward_head(self.forward_features(images))


def block(channels: int, out: int, *, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalization and ReLU."""
    convolution = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU())


def classification_loss(network: nn.Module, batch: Sequence[Tensor]) -> Float[Tensor, ""]:
    """Cross-entropy of a classifier on images and labels."""
    images, labels = batch
    return torch.nn.functional.cross_entropy(network(images), labels)
