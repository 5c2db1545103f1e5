"""torchvision's one-stage detectors: RetinaNet, FCOS, SSD and SSDlite."""

from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import clip_boxes_to_image

from oodlit.base.errors import InvalidArgumentError
from oodlit.objects.adapters.calls import calls_of, maps_of
from oodlit.objects.adapters.class_layer import ClassLayer, ImageReader
from oodlit.objects.adapters.image_boxes import ImageBoxes
from oodlit.objects.adapters.traced import suppressed, survivors, verify

NO_HEAD = "one-stage detectors of torchvision compute class logits by a convolution over several positions"


@final
class DenseReader(ImageReader):
    """Reads boxes and class logits: one box per anchor and class, without features (see `head_problem`).

    As in `RCNNReader`, the selection of boxes is repeated with the numbers of the anchors and compared with the output
    of the network for every image.

    Args:
        network: A torchvision `RetinaNet`, `FCOS` or `SSD`; in eval mode.
        background: Whether class 0 is the background, which is dropped, as in the weights of torchvision. False =
            RetinaNet or FCOS was trained with labels from 0.

    Raises:
        InvalidArgumentError: `background=False` for an SSD, whose softmax has a background.
    """

    def __init__(self, network: RetinaNet | FCOS | SSD, *, background: bool = True) -> None:
        if not background and isinstance(network, SSD):
            raise InvalidArgumentError("DenseReader: an SSD requires background=True, as its class 0 is background")
        self.network, self.background = network, background
        self.class_layer = ClassLayer(None, None, NO_HEAD)

    def read_image(self, image: Tensor, layers: Mapping[str, int], min_confidence: float) -> ImageBoxes:
        """Return the boxes of one image."""
        network = self.network
        taps = {"input": network.transform, "head": network.head, "anchors": network.anchor_generator}
        with calls_of(taps) as calls, maps_of(network, layers, "backbone") as inside:
            (answer,) = network([image])
        (call,) = calls["head"]
        (size,) = calls["input"][0].output[0].image_sizes
        given = {name: value[0] for name, value in call.output.items()}
        (anchors,) = calls["anchors"][0].output
        rows, labels, boxes, scores = self._kept(given, anchors, size, [f.shape[-2:].numel() for f in call.inputs[0]])
        verify(boxes, scores, labels, size, answer, (image.shape[-2], image.shape[-1]))
        chosen = answer["scores"] >= min_confidence
        first = int(self.background)
        if bool((answer["labels"][chosen] < first).any()):
            raise InvalidArgumentError(
                "DenseReader: the network predicts class 0, which is the background in torchvision's weights. If the"
                " labels of your network start at 0, pass DenseReader(network, background=False)"
            )
        return ImageBoxes(
            answer["boxes"][chosen],
            answer["scores"][chosen],
            answer["labels"][chosen] - first,
            given["cls_logits"][:, first:][rows[chosen]],
            hidden=inside(boxes[chosen], calls["input"][0].output[0].tensors.shape[-2:]),
        )

    def _kept(
        self, given: Mapping[str, Tensor], anchors: Tensor, size: tuple[int, int], places: list[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Anchor, class, box in the network's input, and score of each selected box."""
        network = self.network
        parts = []
        for start, first, scores in self._groups(given, places):
            rows, columns = survivors(scores, network.score_thresh, network.topk_candidates)
            parts.append((rows + start, columns + first, scores[rows, columns]))
        anchor, labels, of_boxes = (torch.cat(column) for column in zip(*parts, strict=True))
        coder = network.box_coder
        decode = coder.decode if isinstance(network, FCOS) else coder.decode_single
        boxes = clip_boxes_to_image(decode(given["bbox_regression"][anchor], anchors[anchor]), size)
        best = suppressed(boxes, of_boxes, labels, network.nms_thresh, network.detections_per_img)
        return anchor[best], labels[best], boxes[best], of_boxes[best]

    def _groups(self, given: Mapping[str, Tensor], places: list[int]) -> Iterator[tuple[int, int, Tensor]]:
        """Groups of scores from which the best candidates are selected, with their first anchor and class."""
        logits = given["cls_logits"]
        if isinstance(self.network, SSD):  # class by class, over all anchors
            scores = logits.softmax(dim=-1)
            yield from ((0, label, scores[:, label : label + 1]) for label in range(1, scores.shape[1]))
            return
        scores = logits.sigmoid()
        if isinstance(self.network, FCOS):
            scores = (scores * given["bbox_ctrness"].sigmoid()).sqrt()
        per_place = len(logits) // sum(places)
        start = 0
        for number in places:  # level by level, over all classes
            stop = start + number * per_place
            yield start, 0, scores[start:stop]
            start = stop
