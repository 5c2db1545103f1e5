"""A small Faster R-CNN for scenes of digits, and its training."""

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from oodlit._lightning import pl

SIDE = 96
"""Shorter side of the network's input, in pixels."""


def small_faster_rcnn(num_classes: int, *, width: int = 64) -> FasterRCNN:
    """Torchvision's Faster R-CNN on three convolutions.

    Args:
        num_classes: Number of classes, without background.
        width: Number of features of a box.

    Returns:
        The network with random weights, in training mode.

    Example:
        >>> network = small_faster_rcnn(7).eval()
        >>> sorted(network([torch.zeros(3, 50, 60)])[0])
        ['boxes', 'labels', 'scores']
    """
    backbone: Any = nn.Sequential(_block(3, 16, stride=2), _block(16, 32, stride=2), _block(32, 32))
    backbone.out_channels = 32
    cells = 6
    return FasterRCNN(
        backbone,
        min_size=SIDE,
        max_size=2 * SIDE,
        rpn_anchor_generator=AnchorGenerator(sizes=((16, 24, 36),), aspect_ratios=((0.8, 1.25),)),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_train=64,
        rpn_post_nms_top_n_test=32,
        rpn_batch_size_per_image=64,
        box_roi_pool=MultiScaleRoIAlign(["0"], cells, 1),
        box_head=nn.Sequential(nn.Flatten(), _layer(32 * cells**2, width), _layer(width, width)),
        box_predictor=_Predictor(width, num_classes + 1),
        box_batch_size_per_image=32,
        box_detections_per_img=20,
    )


class _Predictor(nn.Module):
    """Class logits and box shifts, as torchvision names them."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, num_classes)
        self.bbox_pred = nn.Linear(width, 4 * num_classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.cls_score(features), self.bbox_pred(features)


def _layer(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, out), nn.ReLU())


def _block(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU())


class ObjectTraining(pl.LightningModule):
    """Training of a torchvision detector, with one cycle of the learning rate.

    Args:
        network: The detector; trained in place.
        learning_rate: Its peak.
    """

    def __init__(self, network: nn.Module, *, learning_rate: float = 4e-3) -> None:
        super().__init__()
        self.network, self.learning_rate = network, learning_rate

    def training_step(self, batch: tuple[list[Tensor], list[dict[str, Tensor]]], batch_idx: int) -> Tensor:
        """Sum of the detector's losses."""
        losses: dict[str, Tensor] = self.network(*batch)
        return torch.stack(list(losses.values())).sum()

    def configure_optimizers(self) -> pl.utilities.types.OptimizerLRSchedulerConfig:
        """AdamW, with a schedule that moves after every batch."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.learning_rate, weight_decay=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
