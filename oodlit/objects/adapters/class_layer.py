"""The linear class layer of a detection network, without the background class, and readers that have one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from oodlit.backbones.heads import gives, linear_map
from oodlit.base.errors import RequirementError
from oodlit.base.outputs import Head
from oodlit.objects.adapters.image_boxes import ImageBoxes


class ClassLayer:
    """The layer that computes the class logits of a box, verified on the first boxes.

    Args:
        layer: The linear layer; None = there is none.
        background: Column of the background, such as 0 or -1; None = all columns are classes.
        problem: Why there is none, if known beforehand; None = decide by the first boxes.
    """

    def __init__(self, layer: nn.Module | None, background: int | None, problem: str | None = None) -> None:
        self.layer, self.background = layer, background
        self.problem = "no linear layer computes the class logits" if layer is None and problem is None else problem

    def without_background(self, values: Tensor) -> Tensor:
        """Remove the background class from the last axis."""
        if self.background is None:
            return values
        return values[..., 1:] if self.background == 0 else values[..., :-1]

    def verify(self, taken: Tensor, given: Tensor) -> None:
        """Decide once whether the layer computes these logits, background included, from these features."""
        if self.problem is None and len(taken):
            assert self.layer is not None  # otherwise there is a problem
            self.problem = (
                "" if gives(self.layer, taken, given) else "the class logits are not a linear function of the features"
            )

    @property
    def head(self) -> Head:
        """The layer with its current weights.

        Raises:
            RequirementError: The layer does not compute the logits.
        """
        if self.problem or self.layer is None:
            raise RequirementError(f"no class layer: {self.problem}")
        weight, bias = linear_map(self.layer)
        return Head(self.without_background(weight.T).T, self.without_background(bias))


class ClassLayerReader:
    """A reader whose head is a class layer.

    Attributes:
        class_layer: The layer, or why there is none.
    """

    class_layer: ClassLayer

    def head(self) -> Head:
        """The class layer without background.

        Raises:
            RequirementError: There is none; states why.
        """
        return self.class_layer.head

    @property
    def head_problem(self) -> str:
        """Why there is no linear class layer; empty if there is one."""
        return self.class_layer.problem or ""


class ImageReader(ClassLayerReader, ABC):
    """A reader with one forward pass per image, so that images are independent."""

    def read(
        self, images: Sequence[Tensor], layers: Mapping[str, int], *, min_confidence: float = 0.0
    ) -> list[ImageBoxes]:
        """Return the boxes of each image; see `BoxReader`."""
        return [self.read_image(image, layers, min_confidence) for image in images]

    @abstractmethod
    def read_image(self, image: Tensor, layers: Mapping[str, int], min_confidence: float) -> ImageBoxes:
        """Return the boxes of one image."""
