"""The interface of modules that a run can predict with."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from oodlit.backbones.acceleration import Acceleration
from oodlit.base.network import BackboneFacts, Head
from oodlit.base.outputs import Outputs


@runtime_checkable
class Backbone(Protocol):
    """A module that returns `Outputs` for each batch: `OODModule`, `RecordedModule`, or your own.

    It must also be a LightningModule whose `predict_step` returns `Outputs`.
    """

    name: str
    """Name of the backbone in results."""
    network: nn.Module
    """The bare network; an empty module if the outputs were recorded."""
    transform: Callable[..., Any] | None
    """Converts an image to the network's input."""
    arguments: dict[str, Any] | None
    """Constructor arguments as plain values; None if there is no network to rebuild."""
    acceleration: Acceleration
    """Options that make the network faster."""

    @property
    def device(self) -> torch.device:
        """Device of the network."""

    @property
    def head_layers(self) -> tuple[str, ...]:
        """Names of the final linear layers."""

    @property
    def head_problem(self) -> str:
        """Why there is no usable head; empty if there is one."""

    def head_or_none(self) -> Head | None:
        """The linear head; None if there is no usable one."""

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """Fingerprint of weights, head and a transform."""

    def exact_outputs(self, batch: Any) -> Outputs:
        """Outputs of a batch from the plain network, without acceleration."""

    def probe(
        self, images: Tensor, num_train: int = 0, *, layers: Sequence[str] = (), precision: Any = None
    ) -> BackboneFacts:
        """Facts about the backbone from one forward pass over a few images.

        Args:
            images: A few transformed images.
            num_train: Number of training images of the run.
            layers: Hidden layers that detectors ask for.
            precision: Lightning's precision of the run.
        """
