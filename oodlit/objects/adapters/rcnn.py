"""Two-stage detectors of torchvision: Faster, Mask and Keypoint R-CNN."""

from collections.abc import Mapping
from typing import final

from torch import Tensor, nn
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import clip_boxes_to_image, remove_small_boxes

from oodlit.objects.adapters.calls import calls_of, maps_of
from oodlit.objects.adapters.class_layer import ClassLayer, ImageReader
from oodlit.objects.adapters.image_boxes import ImageBoxes
from oodlit.objects.adapters.traced import suppressed, survivors, verify

MIN_SIDE = 1e-2
"""Smallest side of a box, in pixels; a constant of torchvision."""


@final
class RCNNReader(ImageReader):
    """Reads boxes, class logits without the background (column 0), and the input of the class layer.

    A box is one class of one proposal and has its logits and features. To find them, the reader repeats torchvision's
    selection of boxes with the numbers of the proposals and compares the result with the output of the network for
    every image.

    Args:
        network: A torchvision `FasterRCNN`, or a similar detector; in eval mode.
    """

    def __init__(self, network: GeneralizedRCNN) -> None:
        self.network = network
        layer = getattr(network.roi_heads.box_predictor, "cls_score", None)
        missing = None if isinstance(layer, nn.Module) else "the box predictor has no layer cls_score"
        self.class_layer = ClassLayer(layer if isinstance(layer, nn.Module) else None, background=0, problem=missing)

    def read_image(self, image: Tensor, layers: Mapping[str, int], min_confidence: float) -> ImageBoxes:
        """Return the boxes of one image."""
        heads = self.network.roi_heads
        taps: dict[str, nn.Module]
        taps = {"input": self.network.transform, "heads": heads, "predictor": heads.box_predictor}
        if self.class_layer.layer is not None:
            taps["class_layer"] = self.class_layer.layer
        with calls_of(taps) as calls, maps_of(self.network, layers, "backbone") as inside:
            (answer,) = self.network([image])
        logits, deltas = calls["predictor"][0].output
        proposals, (size,) = calls["heads"][0].inputs[1:3]
        rows, labels, boxes, scores = self._kept(logits, deltas, proposals, size)
        verify(boxes, scores, labels, size, answer, (image.shape[-2], image.shape[-1]))
        features = None
        if calls.get("class_layer"):
            features = calls["class_layer"][0].inputs[0].flatten(1)
            self.class_layer.verify(features, logits)
        chosen = answer["scores"] >= min_confidence
        rows = rows[chosen]
        padded = calls["input"][0].output[0].tensors.shape[-2:]
        return ImageBoxes(
            answer["boxes"][chosen],
            answer["scores"][chosen],
            answer["labels"][chosen] - 1,
            self.class_layer.without_background(logits)[rows],
            None if features is None else features[rows],
            inside(boxes[chosen], padded),
        )

    def _kept(
        self, logits: Tensor, deltas: Tensor, proposals: list[Tensor], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Proposal, class, box in the network's input, and score of each selected box."""
        heads = self.network.roi_heads
        every = clip_boxes_to_image(heads.box_coder.decode(deltas, proposals), size)
        every = every.reshape(len(logits), deltas.shape[1] // 4, 4)  # torchvision omits this without proposals
        scores = logits.softmax(dim=-1)
        rows, classes = survivors(scores[:, 1:], heads.score_thresh)
        labels = classes + 1
        boxes, of_boxes = every[rows, labels], scores[rows, labels]
        large = remove_small_boxes(boxes, MIN_SIDE)
        rows, labels, boxes, of_boxes = rows[large], labels[large], boxes[large], of_boxes[large]
        best = suppressed(boxes, of_boxes, labels, heads.nms_thresh, heads.detections_per_img)
        return rows[best], labels[best], boxes[best], of_boxes[best]
