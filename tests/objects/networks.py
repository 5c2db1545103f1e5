"""Small detection networks with random weights, one of each kind."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

from oodlit.cli.demos.network import small_faster_rcnn
from oodlit.objects.adapters import BoxReader, DenseReader, RCNNReader

CLASSES = 3
OPTIONS: Any = {"score_thresh": 0.0, "topk_candidates": 40, "detections_per_img": 15}
SIZES: Any = {"min_size": 64, "max_size": 96}


def backbone(out: int = 8) -> Any:
    layers = nn.Sequential(nn.Conv2d(3, out, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, 2, 1))
    network: Any = layers
    network.out_channels = out
    return network


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().eval()


def faster_rcnn() -> RCNNReader:
    network = seeded(lambda: small_faster_rcnn(CLASSES))
    network.roi_heads.score_thresh = 0.0
    return RCNNReader(network)


def retinanet() -> DenseReader:
    anchors = AnchorGenerator(sizes=((16, 24),), aspect_ratios=((0.8, 1.25),))
    make = lambda: detection.RetinaNet(backbone(), CLASSES, anchor_generator=anchors, **OPTIONS, **SIZES)  # noqa: E731
    return DenseReader(_spread(seeded(make)), background=False)


def fcos() -> DenseReader:
    anchors = AnchorGenerator(sizes=((8,),), aspect_ratios=((1.0,),))
    make = lambda: detection.FCOS(backbone(32), CLASSES, anchor_generator=anchors, **OPTIONS, **SIZES)  # noqa: E731
    return DenseReader(_spread(seeded(make)), background=False)


class _Levels(nn.Module):
    """A backbone as SSD takes it: a mapping of maps."""

    out_channels = (8,)

    def __init__(self) -> None:
        super().__init__()
        self.layers = backbone()

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"0": self.layers(images)}


def ssd() -> DenseReader:
    anchors = DefaultBoxGenerator([[2]], scales=[0.3, 0.5])
    make = lambda: SSD(_Levels(), anchors, (64, 64), CLASSES + 1, **OPTIONS)  # noqa: E731
    return DenseReader(seeded(make))


def _spread(network: nn.Module) -> nn.Module:
    """Let logits differ from place to place: fresh weights are nearly zero."""
    torch.manual_seed(1)
    for weight in network.head.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.1)
    return network


TORCHVISION: dict[str, Callable[[], BoxReader]] = {
    "faster_rcnn": faster_rcnn,
    "retinanet": retinanet,
    "fcos": fcos,
    "ssd": ssd,
}

_SMALL = {
    "d_model": 32,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_queries": 10,
    "num_labels": CLASSES,
}


def hugging_face(kind: str) -> BoxReader:
    """One of Hugging Face's detectors with queries; the caller has seen that transformers is installed."""
    import transformers as hf

    from oodlit.objects.adapters import HuggingFaceReader

    small_resnet = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "layer_type": "basic"}
    one = hf.ResNetConfig(**small_resnet, out_features=["stage4"])
    three = hf.ResNetConfig(**small_resnet, out_features=["stage2", "stage3", "stage4"])
    free = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    square = {"height": 64, "width": 64}
    edges = {"shortest_edge": 48, "longest_edge": 96}

    def rt_detr() -> tuple[nn.Module, Any]:
        inside = hf.RTDetrResNetConfig(**small_resnet, out_features=["stage2", "stage3", "stage4"])
        config = hf.RTDetrConfig(
            **{k: v for k, v in _SMALL.items() if k not in ("encoder_layers",)},
            encoder_hidden_dim=32,
            encoder_in_channels=[8, 16, 16],
            decoder_in_channels=[32] * 3,
            num_denoising=0,
            backbone_config=inside,
        )
        return hf.RTDetrForObjectDetection(config), hf.RTDetrImageProcessor(size=square)

    def yolos() -> tuple[nn.Module, Any]:
        config = hf.YolosConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=[64, 64],
            num_detection_tokens=10,
            num_labels=CLASSES,
        )
        return hf.YolosForObjectDetection(config), hf.YolosImageProcessor(size=square)

    def detr() -> tuple[nn.Module, Any]:
        config = hf.DetrConfig(**_SMALL, **free, backbone_config=one)
        return hf.DetrForObjectDetection(config), hf.DetrImageProcessor(size=edges)

    def conditional() -> tuple[nn.Module, Any]:
        config = hf.ConditionalDetrConfig(**_SMALL, **free, backbone_config=one)
        return hf.ConditionalDetrForObjectDetection(config), hf.ConditionalDetrImageProcessor(size=edges)

    def deformable() -> tuple[nn.Module, Any]:
        config = hf.DeformableDetrConfig(**_SMALL, **free, backbone_config=three, num_feature_levels=3)
        return hf.DeformableDetrForObjectDetection(config), hf.DeformableDetrImageProcessor(size=edges)

    makers = {f.__name__: f for f in (rt_detr, yolos, detr, conditional, deformable)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network, processor = makers[kind]()
    return HuggingFaceReader(network.eval(), processor)


HUGGING_FACE = ("rt_detr", "yolos", "detr", "conditional", "deformable")
