"""The boxes of one image, and the protocol of readers of detection networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head
from oodlit.base.text.singular import singular


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """The boxes of one image; row i of every field belongs to the same box.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels of the image, shape (boxes, 4).
        confidence: Confidence of the object detector, in [0, 1], shape (boxes,).
        predictions: Index of the predicted class among the ID classes (no background), shape (boxes,).
        logits: Logits over the ID classes (no background), shape (boxes, classes).
        features: Input of the class layer, shape (boxes, width); None if no linear layer computes the logits.
        hidden: Activations within each box by layer, shape (boxes, channels, ...).

    Raises:
        InvalidArgumentError: The fields differ in their number of boxes, boxes do not have four numbers, a confidence
            is NaN or out of range, or a class has no logit.

    Example:
        >>> import torch
        >>> ImageBoxes(torch.tensor([[0.0, 0, 5, 5]]), torch.ones(1), torch.tensor([2]), torch.zeros(1, 3))
        ImageBoxes(1 box, logits (1, 3), features None)
    """

    boxes: Tensor
    confidence: Tensor
    predictions: Tensor
    logits: Tensor
    features: Tensor | None = None
    hidden: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 4:
            raise InvalidArgumentError(f"ImageBoxes: expected boxes of shape (boxes, 4), got {tuple(self.boxes.shape)}")
        named = {n: getattr(self, n) for n in ("confidence", "predictions", "logits", "features")}
        named |= {f"hidden[{layer!r}]": value for layer, value in self.hidden.items()}
        for name, value in named.items():
            more = {"confidence": "", "predictions": "", "logits": " classes", "features": " width"}.get(name, " ...")
            if value is None or (len(value) == len(self.boxes) and (more == " ..." or value.ndim == 1 + bool(more))):
                continue
            raise InvalidArgumentError(
                f"ImageBoxes: expected {name} of shape ({len(self.boxes)},{more}), with one row per box, got shape"
                f" {tuple(value.shape)}"
            )
        if self.predictions.dtype.is_floating_point:
            raise InvalidArgumentError(f"ImageBoxes: expected integer predictions, got {self.predictions.dtype}")
        if not bool(((self.confidence >= 0) & (self.confidence <= 1)).all()):  # also rejects NaN
            raise InvalidArgumentError(
                "ImageBoxes: expected confidence to be in [0, 1], got"
                f" {self.confidence.min():g} to {self.confidence.max():g}"
            )
        if len(self) and not 0 <= int(self.predictions.min()) <= int(self.predictions.max()) < self.logits.shape[1]:
            raise InvalidArgumentError(
                f"ImageBoxes: expected predictions from 0 to {self.logits.shape[1] - 1} (columns of the logits"
                f" without background), got {int(self.predictions.min())} to {int(self.predictions.max())}"
            )

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    def select(self, rows: Tensor) -> "ImageBoxes":
        """Select boxes by index or mask."""
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
        return singular(f"ImageBoxes({len(self)} boxes, logits {tuple(self.logits.shape)}, features {features})")


@runtime_checkable
class BoxReader(Protocol):
    """Reads the boxes of a detection network. Implement it for networks that the readers of oodlit do not support.

    `FunctionReader` wraps a plain function.

    Attributes:
        network: The network; its weights identify fitted detectors, and it is moved to the device of the run.
    """

    network: nn.Module

    def head(self) -> Head:
        """Return the class layer without background, from features to logits.

        Raises:
            RequirementError: There is none; states why.
        """

    @property
    def head_problem(self) -> str:
        """Why there is no linear class layer; empty if there is one. Final after the first image."""

    def read(
        self, images: Sequence[Tensor], layers: Mapping[str, int], *, min_confidence: float = 0.0
    ) -> list[ImageBoxes]:
        """Return the boxes of each image, which must not depend on the other images.

        Args:
            images: RGB in [0, 1], of any sizes, shape (3, height, width).
            layers: Layers whose activations within each box to return, with the number of cells per side.
            min_confidence: Boxes with a lower confidence are dropped.
        """
