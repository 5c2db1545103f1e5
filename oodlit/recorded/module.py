"""Recorded outputs in the place of a backbone: nothing is computed that was recorded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodlit._lightning import pl
from oodlit.backbones.acceleration import Acceleration
from oodlit.backbones.facts import check_logits
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import BackboneFacts, Head, Outputs
from oodlit.recorded.agreement import disagreement

NO_HEAD = "no head was given with the recorded outputs"


class RecordedModule(pl.LightningModule):
    """A `Backbone` whose batches hold its outputs already: features, then logits, side by side.

    Args:
        width: Number of features; 0 = none.
        num_classes: Number of logits; 0 = none, they are then computed where there is a head.
        head: The head that the recorded features lead to; None = unknown.
        name: How results call the backbone.
        fingerprint: That of the backbone, where it is known.
        head_problem: Why there is no head, where that is known.
        is_checked: Whether all recorded logits are known to be those of the head; else the probe looks at a few.
        hint: What is said of a detector that needs more than outputs.

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
        is_checked: bool = False,
        hint: str = "; recorded outputs hold neither images nor the network",
    ) -> None:
        """Check that head and outputs fit."""
        super().__init__()
        if head is not None and width and (head.width != width or num_classes not in (0, head.num_classes)):
            raise InvalidArgumentError(
                f"head: it makes {head.num_classes} logits of {head.width} features; recorded are {width} features and"
                f" {num_classes} logits an image (0 = none)"
            )
        self.name = name
        self.transform: Callable[..., Any] | None = None
        self.arguments: dict[str, Any] | None = None
        self.network = nn.Module()  # holds the head, so that it moves with the module
        self.acceleration = Acceleration(self.network)
        if head is not None and width:
            self.network.register_buffer("weight", head.weight)
            self.network.register_buffer("bias", head.offset)
        elif head is not None:
            head_problem = "the features that the head is for were not recorded"
        self._width, self._classes, self._fingerprint, self._hint = width, num_classes, fingerprint, hint
        self._problem = "" if head is not None and width else head_problem
        self._is_checked = is_checked

    @property
    def head_layers(self) -> tuple[str, ...]:
        """Recorded outputs have no layers."""
        return ()

    @property
    def head_problem(self) -> str:
        """Why the logits do not follow from the features; empty if they do."""
        return self._problem

    @property
    def head(self) -> Head:
        """The linear head.

        Raises:
            RequirementError: There is none, or the recorded logits are not its.
        """
        if self._problem:
            raise RequirementError(f"{self.name}: {self._problem}")
        return Head(self.network.get_buffer("weight"), self.network.get_buffer("bias"))

    def head_or_none(self) -> Head | None:
        """The linear head; None if there is no usable one."""
        return None if self.head_problem else self.head

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the backbone that the outputs come from; empty if unknown."""
        return self._fingerprint

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """The same fingerprint, whatever the transform."""
        return self._fingerprint

    def forward(self, images: Tensor) -> Outputs:
        """Features and logits of rows (batch, features + classes)."""
        features = images[:, : self._width] if self._width else None
        logits = images[:, self._width :] if self._classes else None
        if logits is None and not self._problem:
            assert features is not None  # else there is a problem with the head
            logits = self.head(features)
        return Outputs(logits, features)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Outputs:
        """The outputs of one batch, with labels, groups and keys."""
        made = self(batch["image"])
        return Outputs(made.logits, made.features, labels=batch["label"], groups=batch["group"], keys=batch["key"])

    def exact_outputs(self, batch: Any) -> Outputs:
        """The same outputs: nothing is computed that could be accelerated."""
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
        """Facts about the outputs from a few rows; whether the head gives the logits of a cache is seen here."""
        made = self(images.to(self.device))
        if made.logits is not None:
            check_logits(made.logits, self.name)
        if self._classes and not self._problem and not self._is_checked:
            self._problem = disagreement(self.head, made.require("features"), made.require("logits"))
        given = {name for name in ("logits", "features") if getattr(made, name) is not None}
        return BackboneFacts(
            name=self.name,
            width=self._width,
            num_classes=0 if made.logits is None else made.logits.shape[1],
            head_problem=self._problem,
            signed_features=made.features is not None and bool((made.features < 0).any()),
            has_dropout=False,
            feature_map=False,
            num_train=num_train,
            available=frozenset({"labels"} | given | (set() if self._problem else {"head"})),
            layer_problems=dict.fromkeys(layers, "recorded outputs have no hidden layers"),
            hint=self._hint,
        )
