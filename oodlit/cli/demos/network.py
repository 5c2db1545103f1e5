"""A small convolutional network for 8 x 8 digits and its training."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit._lightning import pl


class SmallNetwork(nn.Module):
    """Three convolutions, a global mean, dropout and a linear head named "head"; non-negative features.

    It has the two methods of timm's networks, so that detectors which need the last feature map apply as well.

    Args:
        num_classes: Number of classes.
        width: Number of features. Default 64.

    Example:
        >>> SmallNetwork(7)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 7])
    """

    def __init__(self, num_classes: int, *, width: int = 64) -> None:
        """Make the layers."""
        super().__init__()
        self.num_features = width
        self.blocks = nn.Sequential(
            _block(3, width // 2), _block(width // 2, width), nn.MaxPool2d(2), _block(width, width)
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(width, num_classes)

    def forward_features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels y x"]:
        """The map of the last block."""
        feature_map: Tensor = self.blocks(images)
        return feature_map

    def forward_head(
        self, feature_map: Float[Tensor, "batch channels y x"], pre_logits: bool = False
    ) -> Float[Tensor, "batch out"]:
        """From the map to logits, or to the features before them."""
        features: Tensor = self.pool(feature_map)
        logits: Tensor = features if pre_logits else self.head(features)
        return logits

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Logits."""
        return self.forward_head(self.forward_features(images))


def _block(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class DigitsTraining(pl.LightningModule):
    """Cross-entropy training of a classifier, with one cycle of the learning rate.

    Args:
        network: From images to logits; trained in place.
        learning_rate: Its peak. Default 0.01.
    """

    def __init__(self, network: nn.Module, *, learning_rate: float = 0.01) -> None:
        """Keep the network."""
        super().__init__()
        self.network, self.learning_rate = network, learning_rate

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Float[Tensor, ""]:
        """Loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> pl.utilities.types.OptimizerLRSchedulerConfig:
        """AdamW, with a schedule that moves after every batch."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.learning_rate, weight_decay=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
