"""What a detection network gives for one image, and what reads it: the protocol of all adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """The boxes of one image; row i of every field belongs to the same box.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels of the image that was given, shape (boxes, 4).
        confidence: The detector's own, in [0, 1], shape (boxes,).
        predictions: Index of the predicted class among the ID classes (no background), shape (boxes,).
        logits: Over the ID classes (no background), shape (boxes, classes).
        features: Input of the class layer, shape (boxes, width); None where no linear layer gives the logits.
        hidden: By layer, what it gives within each box, shape (boxes, channels, ...).

    Raises:
        InvalidArgumentError: The fields differ in their number of boxes, boxes have no four numbers, a confidence is
            NaN or outside its range, or a class has no logit.

    Example:
        >>> import torch
        >>> ImageBoxes(torch.tensor([[0.0, 0, 5, 5]]), torch.ones(1), torch.tensor([2]), torch.zeros(1, 3))
        ImageBoxes(1 boxes, logits (1, 3), features None)
    """

    boxes: Tensor
    confidence: Tensor
    predictions: Tensor
    logits: Tensor
    features: Tensor | None = None
    hidden: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """See that all fields speak of the same boxes."""
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 4:
            raise InvalidArgumentError(f"ImageBoxes: boxes has shape {tuple(self.boxes.shape)}; (boxes, 4) is needed")
        named = {n: getattr(self, n) for n in ("confidence", "predictions", "logits", "features")} | dict(self.hidden)
        for name, value in named.items():
            axes = {"confidence": 1, "predictions": 1, "logits": 2, "features": 2}.get(name)
            if value is None or (len(value) == len(self.boxes) and axes in (None, value.ndim)):
                continue
            raise InvalidArgumentError(
                f"ImageBoxes: {name} has shape {tuple(value.shape)}, but there are {len(self.boxes)} boxes"
            )
        if self.predictions.dtype.is_floating_point:
            raise InvalidArgumentError(f"ImageBoxes: predictions are {self.predictions.dtype}; integers are needed")
        if not bool(((self.confidence >= 0) & (self.confidence <= 1)).all()):  # also what is NaN
            raise InvalidArgumentError(
                f"ImageBoxes: confidence holds {self.confidence.min():g}..{self.confidence.max():g}; numbers in [0, 1]"
                " are needed"
            )
        if len(self) and not 0 <= int(self.predictions.min()) <= int(self.predictions.max()) < self.logits.shape[1]:
            raise InvalidArgumentError(
                f"ImageBoxes: predictions hold {int(self.predictions.min())}..{int(self.predictions.max())}; positions"
                f" among the {self.logits.shape[1]} logits, from 0 on and without background, are needed"
            )

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    def select(self, rows: Tensor) -> "ImageBoxes":
        """The given boxes, by index or mask."""
        return ImageBoxes(
            self.boxes[rows],
            self.confidence[rows],
            self.predictions[rows],
            self.logits[rows],
            None if self.features is None else self.features[rows],
            {name: value[rows] for name, value in self.hidden.items()},
        )

    def __repr__(self) -> str:
        """Shapes, never values."""
        features = None if self.features is None else tuple(self.features.shape)
        return f"ImageBoxes({len(self)} boxes, logits {tuple(self.logits.shape)}, features {features})"


@runtime_checkable
class BoxReader(Protocol):
    """Reads a detection network. A network that none of oodlit's readers knows needs such an object of its own.

    `FunctionReader` makes one of a plain function.

    Attributes:
        network: The network; its weights tell fits apart, and it is moved to the device of the run.
    """

    network: nn.Module

    def head(self) -> Head:
        """The class layer without background, from features to logits.

        Raises:
            RequirementError: There is none; says why.
        """

    @property
    def head_problem(self) -> str:
        """Why there is no linear class layer; empty if there is one. Final after the first image was read."""

    def read(
        self, images: Sequence[Tensor], layers: Mapping[str, int], *, min_confidence: float = 0.0
    ) -> list[ImageBoxes]:
        """The boxes of each image, independent of the other images.

        Args:
            images: RGB in [0, 1], each of its own size, shape (3, height, width).
            layers: Layers whose activations within each box are asked for, with the number of cells a side.
            min_confidence: Boxes below are left out.
        """
