"""Any other detector: a function from images to boxes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.objects.adapters.boxes import ImageBoxes
from oodlit.objects.adapters.class_layer import ClassLayer
from oodlit.outputs import Head


@final
class FunctionReader:
    """Boxes by a function, or a network that returns `ImageBoxes`: the way for a detector that is none of the known.

    Args:
        function: From a list of images (RGB in [0, 1], (3, height, width), each of its own size) to one `ImageBoxes`
            for each, in pixels of that image, without background, after suppression. Images must not influence each
            other. Activations that `LaRD` looks at may come along as `hidden`, by the name that it asks for.
        network: The network behind the function; its weights tell fits apart. None = the function, if it is a module.
        class_layer: The linear layer from the features of a box to its logits, without background; None = there is
            none. Whether head(features) = logits is seen at the first boxes.

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
                "FunctionReader: network=None; give the network behind the function, whose weights tell fits apart"
            )
        self._function, self.network = function, network
        self._class_layer = ClassLayer(class_layer, None, "no class layer was named" if class_layer is None else None)

    def head(self) -> Head:
        """The class layer."""
        return self._class_layer.head

    @property
    def head_problem(self) -> str:
        """Why there is no linear class layer; empty if there is one."""
        return self._class_layer.problem or ""

    def read(
        self, images: Sequence[Tensor], layers: Mapping[str, int], *, min_confidence: float = 0.0
    ) -> list[ImageBoxes]:
        """What the function gives, without boxes below `min_confidence`.

        Raises:
            InvalidArgumentError: It gives no `ImageBoxes` for each image.
            RequirementError: A layer is asked for that it does not bring along.
        """
        found = list(self._function(list(images)))
        if len(found) != len(images) or not all(isinstance(boxes, ImageBoxes) for boxes in found):
            raise InvalidArgumentError(
                f"FunctionReader: the function gave {len(found)} {type(found[0]).__name__ if found else 'objects'} for"
                f" {len(images)} images; one ImageBoxes for each is needed"
            )
        for boxes in found:
            if boxes.features is not None:
                self._class_layer.verify(boxes.features, boxes.logits)
            if missing := [layer for layer in layers if layer not in boxes.hidden]:
                raise RequirementError(f"the function brings no hidden {missing[0]!r} along")
        kept = (boxes.select(~(boxes.confidence < min_confidence)) for boxes in found)
        return [replace(boxes, hidden={layer: boxes.hidden[layer] for layer in layers}) for boxes in kept]
