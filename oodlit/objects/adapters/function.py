"""Other detectors: a function from images to boxes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError, RequirementError
from oodlit.objects.adapters.class_layer import ClassLayer, ClassLayerReader
from oodlit.objects.adapters.image_boxes import ImageBoxes


@final
class FunctionReader(ClassLayerReader):
    """Wraps a function, or a network, that returns `ImageBoxes`: for detectors that no other reader supports.

    Args:
        function: From a list of images (RGB in [0, 1], (3, height, width), of any sizes) to one `ImageBoxes`
            for each, in pixels of that image, without background, after suppression. Images must not influence each
            other. Activations for `LaRD` can be returned as `hidden`, by the requested name.
        network: The network of the function; its weights identify fitted detectors. None = the function, if it is a
            module.
        class_layer: The linear layer from the features of a box to its logits, without background; None = there is
            none. The first boxes verify that head(features) = logits.

    Raises:
        InvalidArgumentError: There is no network.

    Example:
        >>> import torch
        >>> class Corner(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.classes = nn.Linear(3, 2)
        ...     def forward(self, images):
        ...         found = []
        ...         for image in images:
        ...             features = image.mean(dim=(1, 2))[None]
        ...             logits = self.classes(features)
        ...             confidence, predictions = logits.sigmoid().max(dim=1)
        ...             box = torch.tensor([[0.0, 0, 9, 9]])
        ...             found.append(ImageBoxes(box, confidence, predictions, logits, features))
        ...         return found
        >>> network = Corner()
        >>> reader = FunctionReader(network, class_layer=network.classes)
        >>> boxes, = reader.read([torch.rand(3, 20, 30)], {})
        >>> bool(torch.allclose(reader.head()(boxes.features), boxes.logits)), reader.head_problem
        (True, '')
    """

    def __init__(
        self,
        function: Callable[[list[Tensor]], Sequence[ImageBoxes]],
        *,
        network: nn.Module | None = None,
        class_layer: nn.Module | None = None,
    ) -> None:
        network = function if network is None and isinstance(function, nn.Module) else network
        if network is None:
            raise InvalidArgumentError(
                "FunctionReader: missing network=...; pass the network that the function runs, because fitted detectors"
                " are valid only for its weights"
            )
        self._function, self.network = function, network
        self.class_layer = ClassLayer(class_layer, None, "no class layer was given" if class_layer is None else None)

    def read(
        self, images: Sequence[Tensor], layers: Mapping[str, int], *, min_confidence: float = 0.0
    ) -> list[ImageBoxes]:
        """Return the boxes of the function with a confidence of at least `min_confidence`.

        Raises:
            InvalidArgumentError: The function does not return one `ImageBoxes` for each image.
            RequirementError: The function does not return a requested layer.
        """
        found = list(self._function(list(images)))
        kinds = sorted({type(boxes).__name__ for boxes in found})
        if len(found) != len(images) or not all(isinstance(boxes, ImageBoxes) for boxes in found):
            raise InvalidArgumentError(
                f"FunctionReader: expected a list with one ImageBoxes per image ({len(images)}), but the function"
                f" returned {len(found)} objects{' of type ' * bool(kinds)}{' and '.join(kinds)}"
            )
        for boxes in found:
            if boxes.features is not None:
                self.class_layer.verify(boxes.features, boxes.logits)
            if missing := [layer for layer in layers if layer not in boxes.hidden]:
                raise RequirementError(
                    f"FunctionReader: a detector reads layer {missing[0]!r}, but the function does not return it; add"
                    " it to hidden=... of each ImageBoxes"
                )
        kept = (boxes.select(~(boxes.confidence < min_confidence)) for boxes in found)
        return [replace(boxes, hidden={layer: boxes.hidden[layer] for layer in layers}) for boxes in kept]
