"""A network beyond one batch: what is known of it beforehand, its linear head, and what may be asked of it further.

Imports torch alone. `oodlit.outputs` hands all of it on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError

__all__ = ["NEEDS", "BackboneFacts", "Head", "Model", "at_least_float32"]

NEEDS = frozenset({"logits", "features", "head", "labels", "images", "hidden", "model"})
"""Everything that a detector may declare in `needs`."""


@dataclass(frozen=True)
class BackboneFacts:
    """What is known of a backbone before the first batch; requirements are checked against it.

    Args:
        name: How messages call the backbone.
        width: Number of features; 0 if there are none.
        num_classes: Number of logits; 0 without classifier.
        head_problem: Why there is no usable linear head; empty if there is one.
        signed_features: True if a probe gave negative features.
        has_dropout: True if any `nn.Dropout*` with p > 0 is part of the network.
        feature_map: True if the last block gives a (channels, height, width) map and logits follow from it.
        num_train: Number of training images of the run; 0 if there is no train stream.
        available: Fields of `Outputs` that this backbone can give.
        channels: Number of channels of every hidden layer that was asked for and can be read, by name.
        layer_problems: Why the other layers that were asked for cannot be read, by name.
        hint: Why images and the network itself are not at hand, for the reason of a detector that needs them.
    """

    name: str = "backbone"
    width: int = 0
    num_classes: int = 0
    head_problem: str = ""
    signed_features: bool = False
    has_dropout: bool = False
    feature_map: bool = False
    num_train: int = 0
    available: frozenset[str] = NEEDS
    channels: Mapping[str, int] = field(default_factory=dict)
    layer_problems: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""


@runtime_checkable
class Model(Protocol):
    """What detectors may ask of the network beyond one forward pass; gradients flow where they are on."""

    @property
    def network(self) -> nn.Module:
        """The bare network in eval mode."""

    @property
    def std(self) -> Tensor:
        """Normalisation standard deviation of the transform, shape (channels,)."""

    def logits(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of a batch of transformed images."""

    def features(self, images: Tensor) -> Tensor:
        """Features (batch, features) of a batch of transformed images, such as changed ones."""

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        """Logits (batch, classes) from the last block's map (batch, channels, height, width)."""


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer of a classifier: logits = features @ weight.T + bias.

    Args:
        weight: Shape (classes, features).
        bias: Shape (classes,). None means that the layer has no bias; it is then stored as zeros.

    Raises:
        InvalidArgumentError: The shapes do not fit.

    Example:
        >>> head = Head(torch.eye(3, 4))
        >>> head(torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes, upcast half precision, and store a missing bias as zeros."""
        if self.weight.ndim != 2 or 0 in self.weight.shape:
            raise InvalidArgumentError(
                f"Head: weight has shape {tuple(self.weight.shape)}; (classes, features) is needed"
            )
        bias = self.weight.new_zeros(self.weight.shape[0]) if self.bias is None else self.bias
        if bias.shape != self.weight.shape[:1]:
            raise InvalidArgumentError(
                f"Head: bias has shape {tuple(bias.shape)}; ({self.weight.shape[0]},) is needed for this weight"
            )
        object.__setattr__(self, "weight", at_least_float32(self.weight.detach(), "Head.weight"))
        object.__setattr__(self, "bias", at_least_float32(bias.detach(), "Head.bias"))

    @property
    def offset(self) -> Float[Tensor, " classes"]:
        """The bias; zeros where the layer has none."""
        assert self.bias is not None  # set in __post_init__
        return self.bias

    @property
    def num_classes(self) -> int:
        """Number of logits."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Number of features."""
        return self.weight.shape[1]

    @property
    def unmasked(self) -> "Head":
        """The head without masked classes, which have a bias of minus infinity."""
        kept = self.offset > -float("inf")
        return Head(self.weight[kept], self.offset[kept])

    def __call__(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        """Logits of `features`, computed in the wider of both dtypes."""
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        return torch.addmm(self.offset.to(dtype), features.to(dtype), self.weight.to(dtype).T)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """The same head on another device or in another dtype."""
        return Head(self.weight.to(device=device, dtype=dtype), self.offset.to(device=device, dtype=dtype))


def at_least_float32(value: Tensor, name: str) -> Tensor:
    """A tensor in float32 where it was in less.

    Raises:
        InvalidArgumentError: It holds no floating-point numbers.
    """
    if not value.dtype.is_floating_point:
        raise InvalidArgumentError(f"{name}: dtype {value.dtype}; floating point is needed")
    return value.float() if value.dtype.itemsize < 4 else value
