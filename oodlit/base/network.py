"""A network beyond one batch: known facts, its linear head, and access to extra forward passes.

Imports torch only. `oodlit.outputs` exports all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError

__all__ = ["NEEDS", "BackboneFacts", "Head", "Model", "at_least_float32"]

NEEDS = frozenset({"logits", "features", "head", "labels", "images", "hidden", "model"})
"""All names that a detector may declare in `needs`."""


@dataclass(frozen=True)
class BackboneFacts:
    """Facts about a backbone that are known before the first batch, for checking requirements.

    Args:
        name: Name of the backbone in messages.
        width: Number of features; 0 if there are none.
        num_classes: Number of logits; 0 without a classifier.
        head_problem: Why there is no usable linear head; empty if there is one.
        signed_features: Whether a probe returned negative features.
        has_dropout: Whether the network contains `nn.Dropout*` with p > 0.
        feature_map: Whether the last block returns a (channels, height, width) map that determines the logits.
        num_train: Number of training images of the run; 0 without a train stream.
        available: Fields of `Outputs` that this backbone can provide.
        channels: Number of channels of every requested hidden layer that can be read, by name.
        layer_problems: Why other requested layers cannot be read, by name.
        is_random: Whether two passes over the same images had different outputs.
        predicted_labels: Whether the labels of training rows are the network's own predictions.
        hint: Why images and the network are not available, for the messages of detectors that require them.
        fingerprint: What is known about the backbone of a fit, see `oodlit.base.fingerprint`; parts may be missing.
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
    is_random: bool = False
    predicted_labels: bool = False
    hint: str = ""
    fingerprint: str = ""


@runtime_checkable
class Model(Protocol):
    """Access to the network for detectors that need more than one forward pass; gradients are recorded if enabled."""

    @property
    def network(self) -> nn.Module:
        """The bare network in eval mode."""

    @property
    def std(self) -> Tensor:
        """Standard deviation of the transform's normalization, shape (channels,)."""

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (batch, classes) of transformed images."""

    def features(self, images: Tensor) -> Tensor:
        """Return the features (batch, features) of transformed images."""

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        """Return the logits (batch, classes) for maps of the last block (batch, channels, height, width)."""


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer of a classifier: logits = features @ weight.T + bias.

    Args:
        weight: Shape (classes, features).
        bias: Shape (classes,). None = no bias, stored as zeros.

    Raises:
        InvalidArgumentError: The shapes do not match.

    Example:
        >>> head = Head(torch.eye(3, 4))
        >>> head(torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes, upcast half precision, and store a missing bias as zeros."""
        shape = tuple(self.weight.shape)
        if len(shape) != 2 or 0 in shape:
            raise InvalidArgumentError(f"Head: expected weight of shape (classes, features), got {shape}")
        bias = self.weight.new_zeros(shape[0]) if self.bias is None else self.bias
        if bias.shape != shape[:1]:
            raise InvalidArgumentError(
                "Head: expected weight of shape (classes, features) and bias of shape (classes,), got weight of shape"
                f" {shape} and bias of shape {tuple(bias.shape)}"
            )
        object.__setattr__(self, "weight", at_least_float32(self.weight.detach(), "Head.weight"))
        object.__setattr__(self, "bias", at_least_float32(bias.detach(), "Head.bias"))

    @property
    def offset(self) -> Float[Tensor, " classes"]:
        """The bias; zeros for a layer without one."""
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
        """Return the logits of `features`, computed in the wider of the two dtypes."""
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        return torch.addmm(self.offset.to(dtype), features.to(dtype), self.weight.to(dtype).T)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """Return the head on another device or in another dtype."""
        return Head(self.weight.to(device=device, dtype=dtype), self.offset.to(device=device, dtype=dtype))


def at_least_float32(value: Tensor, name: str) -> Tensor:
    """Upcast a tensor to float32 if it has less precision.

    Raises:
        InvalidArgumentError: The tensor does not contain floating-point numbers.
    """
    if not value.dtype.is_floating_point:
        raise InvalidArgumentError(f"{name}: expected a floating-point tensor, got {value.dtype}")
    return value.float() if value.dtype.itemsize < 4 else value
