"""A module that returns recorded outputs in place of a backbone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodlit._lightning import pl
from oodlit.backbones.acceleration import Acceleration
from oodlit.backbones.facts import check_logits
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import BackboneFacts, Head, Outputs

NO_HEAD = "no head was given with the recorded outputs"


class RecordedModule(pl.LightningModule):
    """A `Backbone` whose batches are already its outputs: features, then logits, side by side.

    Args:
        width: Number of features; 0 = none.
        num_classes: Number of logits; 0 = none: they are computed if there is a head.
        head: The head that follows the recorded features; None = unknown.
        name: Name of the backbone in results.
        fingerprint: Fingerprint of the backbone; empty = unknown.
        head_problem: Why there is no head.
        hint: End of the message for detectors that require more than outputs.

    Raises:
        InvalidArgumentError: The head does not fit the outputs.

    Example:
        >>> module = RecordedModule(width=2, num_classes=0, head=Head(torch.eye(2)))
        >>> module(torch.tensor([[1.0, 2.0]])).logits
        tensor([[1., 2.]])
    """

    def __init__(
        self,
        *,
        width: int,
        num_classes: int,
        head: Head | None = None,
        name: str = "recorded outputs",
        fingerprint: str = "",
        head_problem: str = NO_HEAD,
        hint: str = "; recorded outputs contain neither images nor the network",
    ) -> None:
        """Check that head and outputs fit."""
        super().__init__()
        if head is not None and width and (head.width != width or num_classes not in (0, head.num_classes)):
            raise InvalidArgumentError(
                f"head: it maps {head.width} features to {head.num_classes} logits, but the recorded outputs have"
                f" {width} features and {num_classes} logits per image (0 = none)"
            )
        self.name = name
        self.transform: Callable[..., Any] | None = None
        self.arguments: dict[str, Any] | None = None
        self.network = nn.Module()  # contains the head, so that it moves with the module
        self.acceleration = Acceleration(self.network)
        if head is not None and width:
            self.network.register_buffer("weight", head.weight)
            self.network.register_buffer("bias", head.offset)
        elif head is not None:
            head_problem = "the features that the head is for were not recorded"
        self._width, self._classes, self._hint = width, num_classes, hint
        self.fingerprint = fingerprint
        self.head_layers: tuple[str, ...] = ()
        self.head_problem = "" if head is not None and width else head_problem

    @property
    def head(self) -> Head:
        """The linear head.

        Raises:
            RequirementError: There is none, or the recorded logits do not come from it.
        """
        if self.head_problem:
            raise RequirementError(f"{self.name}: {self.head_problem}")
        return Head(self.network.get_buffer("weight"), self.network.get_buffer("bias"))

    def head_or_none(self) -> Head | None:
        """The linear head; None if there is no usable one."""
        return None if self.head_problem else self.head

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """The same fingerprint for any transform."""
        return self.fingerprint

    def forward(self, images: Tensor) -> Outputs:
        """Split rows (batch, features + classes) into features and logits."""
        features = images[:, : self._width] if self._width else None
        logits = images[:, self._width :] if self._classes else None
        if logits is None and not self.head_problem:
            assert features is not None  # without features, the head has a problem
            logits = self.head(features)
        return Outputs(logits, features)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Outputs:
        """The outputs of one batch, with labels, groups and keys."""
        made = self(batch["image"])
        return Outputs(made.logits, made.features, labels=batch["label"], groups=batch["group"], keys=batch["key"])

    def exact_outputs(self, batch: Any) -> Outputs:
        """The same outputs, because nothing is accelerated."""
        return self.predict_step(batch, 0)

    @torch.no_grad()
    def probe(
        self,
        images: Tensor,
        num_train: int = 0,
        *,
        layers: Sequence[str] = (),
        precision: pl.plugins.Precision | None = None,
    ) -> BackboneFacts:
        """Facts about the outputs from a few rows; checks whether the head returns the recorded logits."""
        made = self(images.to(self.device))
        if made.logits is not None:
            check_logits(made.logits, self.name)
        if self._classes and not self.head_problem:
            self.head_problem = _disagreement(self.head, made)
        given = {name for name in ("logits", "features") if getattr(made, name) is not None}
        return BackboneFacts(
            name=self.name,
            width=self._width,
            num_classes=0 if made.logits is None else made.logits.shape[1],
            head_problem=self.head_problem,
            signed_features=made.features is not None and bool((made.features < 0).any()),
            has_dropout=False,
            feature_map=False,
            num_train=num_train,
            available=frozenset({"labels"} | given | (set() if self.head_problem else {"head"})),
            layer_problems=dict.fromkeys(layers, "recorded outputs have no hidden layers"),
            hint=self._hint,
        )


def _disagreement(head: Head, made: Outputs) -> str:
    """How recorded logits differ from those of the head; empty if only by the rounding of half precision."""
    logits, features = made.require("logits"), made.require("features")
    rebuilt = head(features).to(logits)
    scale = float(logits.abs().max())
    if torch.allclose(rebuilt, logits, rtol=2e-2, atol=2e-2 * scale):
        return ""
    return (
        f"the recorded logits are not those of the head for the recorded features (they differ by up to"
        f" {float((rebuilt - logits).abs().max()):.3g}, and the largest is {scale:.3g})"
    )
