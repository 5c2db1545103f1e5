"""Detectors with queries of Hugging Face: DETR, Conditional and Deformable DETR, RT-DETR, D-FINE, YOLOS and others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

from oodlit.backbones.facts import place_of
from oodlit.objects.adapters.calls import Call, calls_of, maps_of
from oodlit.objects.adapters.class_layer import ClassLayer, ImageReader
from oodlit.objects.adapters.image_boxes import ImageBoxes


@final
class HuggingFaceReader(ImageReader):
    """Reads a box, its class logits and the input of the last class layer for every query.

    Confidence and class are those of the largest class logit. If there is one more logit than labels, the "no object"
    of DETR and YOLOS, confidences are a softmax and this logit is dropped; otherwise they are a sigmoid. Each query is
    one box, even if the post-processing of the model repeats it for other classes.

    Args:
        network: A `...ForObjectDetection` of transformers, or a network that returns `logits` (images, queries,
            classes) and `pred_boxes` (center, width and height between 0 and 1); in eval mode.
        processor: Its image processor, such as from `AutoImageProcessor.from_pretrained`: from a list of uint8 images
            (3, height, width) to `pixel_values` and other inputs.
    """

    def __init__(self, network: nn.Module, processor: Callable[..., Any]) -> None:
        self.network, self.processor = network, processor
        self.class_layer = ClassLayer(None, None, problem="")
        self._name: str | None = None  # of the class layer: None before the first image, empty if there is none

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits, by `id2label` of the config; () if it is incomplete."""
        labels = getattr(getattr(self.network, "config", None), "id2label", None) or {}
        names = {int(number): str(name) for number, name in labels.items()}  # JSON files have text, in order of text
        return tuple(names[n] for n in range(len(names))) if set(names) == set(range(len(names))) else ()

    def read_image(self, image: Tensor, layers: Mapping[str, int], min_confidence: float) -> ImageBoxes:
        """Return the boxes of one image, highest confidence first."""
        inputs = self._inputs(image)
        every, name = self.network.named_modules(), self._name
        linear = {n: m for n, m in every if n == name or (name is None and isinstance(m, nn.Linear))}
        with calls_of(linear) as calls, maps_of(self.network, layers, self._feature_map()) as inside:
            answer = self.network(**inputs)
        logits, centres = answer.logits[0].float(), answer.pred_boxes[0].float()
        if name is None:
            self._choose(calls, logits)
        features = self._features(calls, logits)
        own = self._own(logits)
        chances = logits.softmax(dim=-1) if own.shape[1] < logits.shape[1] else logits.sigmoid()
        confidence, classes = chances[:, : own.shape[1]].max(dim=1)
        order = confidence.argsort(descending=True, stable=True)
        rows = order[~(confidence[order] < min_confidence)]  # NaN stays, and is rejected later
        boxes = box_convert(centres[rows], "cxcywh", "xyxy")
        size = inputs["pixel_values"].shape[-2:]
        return ImageBoxes(
            boxes * _scale(boxes, image.shape[-2:]),
            confidence[rows],
            classes[rows],
            own[rows],
            None if features is None else features[rows],
            inside(boxes * _scale(boxes, size), size),
        )

    def _inputs(self, image: Tensor) -> dict[str, Tensor]:
        """Process the decoded pixels."""
        device, dtype = place_of(self.network)
        pixels = (image * 255).round().to(torch.uint8)
        made = self.processor(images=[pixels.cpu()], return_tensors="pt")
        return {n: v.to(device, dtype if v.is_floating_point() else None) for n, v in made.items()}

    def _feature_map(self) -> str:
        names = {name for name, _ in self.network.named_modules()}
        prefix = getattr(self.network, "base_model_prefix", "")
        return next((name for name in (f"{prefix}.backbone", "model.backbone") if name in names), "")

    def _own(self, logits: Tensor) -> Tensor:
        """Logits without "no object"."""
        labels = getattr(getattr(self.network, "config", None), "num_labels", logits.shape[1])
        return logits[:, :-1] if logits.shape[1] == labels + 1 else logits

    def _choose(self, calls: Mapping[str, list[Call]], logits: Tensor) -> None:
        """Find the layer whose last call returned the logits."""
        found = [name for name, made in calls.items() if _last_with_output(made, logits) is not None]
        self._name = found[-1] if found else ""
        background = -1 if self._own(logits).shape[1] < logits.shape[1] else None
        self.class_layer = ClassLayer(self.network.get_submodule(found[-1]) if found else None, background)

    def _features(self, calls: Mapping[str, list[Call]], logits: Tensor) -> Tensor | None:
        call = _last_with_output(calls.get(self._name or "", []), logits)
        if call is None:
            return None
        features: Tensor = call.inputs[0].reshape(len(logits), -1).float()
        self.class_layer.verify(features, logits)
        return features


def _last_with_output(calls: Sequence[Call], logits: Tensor) -> Call | None:
    """The last call with these logits as its output."""
    return next((call for call in reversed(calls) if _is_same(call.output, logits)), None)


def _is_same(output: object, logits: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.shape[-2:] != logits.shape or output.numel() != logits.numel():
        return False
    return torch.equal(output.reshape(logits.shape).float(), logits)


def _scale(boxes: Tensor, size: Sequence[int]) -> Tensor:
    return boxes.new_tensor([size[1], size[0]]).repeat(2)
