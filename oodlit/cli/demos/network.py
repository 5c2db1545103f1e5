"""A small convolutional network for 8 x 8 digits, a small Faster R-CNN for scenes of digits, and their losses."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

SIDE = 96
"""Shorter side of the input of the Faster R-CNN, in pixels."""


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


def small_faster_rcnn(num_classes: int, *, width: int = 64) -> FasterRCNN:
    """Make torchvision's Faster R-CNN on three convolutions.

    Args:
        num_classes: Number of classes without the background.
        width: Number of features per box.

    Returns:
        The network with random weights, in training mode.

    Example:
        >>> network = small_faster_rcnn(7).eval()
        >>> sorted(network([torch.zeros(3, 50, 60)])[0])
        ['boxes', 'labels', 'scores']
    """
    backbone: Any = nn.Sequential(block(3, 16, stride=2), block(16, 32, stride=2), block(32, 32))
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


def detection_loss(network: nn.Module, batch: tuple[list[Tensor], list[dict[str, Tensor]]]) -> Tensor:
    """Sum of the losses of a torchvision detector on images and targets."""
    return torch.stack(list(network(*batch).values())).sum()
