"""Recorded outputs in place of a backbone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodlit._lightning import Module, pl
from oodlit.backbones.acceleration import Acceleration
from oodlit.backbones.facts import check_logits
from oodlit.base.errors import InvalidArgumentError, RequirementError
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.recorded.agreement import disagreement

NO_HEAD = "no head was given with the recorded features"


class RecordedModule(Module):
    """A `Backbone` whose batches contain its outputs: features, then logits, side by side.

    Args:
        width: Number of features; 0 = none.
        num_classes: Number of logits; 0 = none, so that they are computed if there is a head.
        head: The head that turns the recorded features into logits; None = unknown.
        name: Name of the backbone in results.
        fingerprint: Fingerprint of the backbone; empty if unknown.
        head_problem: Why there is no head.
        is_checked: Whether all recorded logits were compared with those of the head; otherwise the probe checks a few.
        hint: Ends the message about a detector that requires more than outputs.
        class_subset: Indices of the logits to use; empty (default) = all.

    Raises:
        InvalidArgumentError: The head does not match the outputs.

    Example:
        >>> module = RecordedModule(width=2, num_classes=0, head=Head(torch.eye(2)))
        >>> module(torch.tensor([[1.0, 2.0]])).logits
        tensor([[1., 2.]])
    """

    head_layers: tuple[str, ...] = ()
    """Recorded outputs have no layers."""

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
        hint: str = "; recorded features contain neither images nor the network",
        class_subset: Sequence[int] = (),
    ) -> None:
        """Check that head and outputs match."""
        super().__init__()
        if head is not None and width and (head.width != width or num_classes not in (0, head.num_classes)):
            shape = tuple(head.weight.shape)
            is_turned = shape[0] == width and num_classes in (0, shape[1])
            turn = f"; head.weight has shape {shape}, expected (classes, features): pass weight.T" if is_turned else ""
            raise InvalidArgumentError(
                f"the head computes {head.num_classes} logits from {head.width} features, but the recording has"
                f" {width} features and {num_classes} logits per image (0 = none){turn}"
            )
        self.name = name
        self.transform: Callable[..., Any] | None = None
        self.arguments: dict[str, Any] | None = None
        self.network = nn.Module()  # contains the head, so that it moves with the module
        self.acceleration = Acceleration(self.network)
        self.class_subset = list(class_subset)
        if head is not None and self.class_subset:
            head = Head(head.weight[self.class_subset], head.offset[self.class_subset])
        if head is not None and width:
            self.network.register_buffer("weight", head.weight)
            self.network.register_buffer("bias", head.offset)
        elif head is not None:
            head_problem = "the recording contains no features for the head"
        self.fingerprint = fingerprint
        self._width, self._classes, self._hint, self._is_checked = width, num_classes, hint, is_checked
        self.head_problem = "" if head is not None and width else head_problem
        """Why the head does not compute the logits from the features; empty if it does."""

    @property
    def head(self) -> Head:
        """The linear head.

        Raises:
            RequirementError: There is none, or the recorded logits differ from its logits.
        """
        if self.head_problem:
            raise RequirementError(f"{self.name}: {self.head_problem}")
        return Head(self.network.get_buffer("weight"), self.network.get_buffer("bias"))

    def head_or_none(self) -> Head | None:
        """The linear head; None if there is no usable one."""
        return None if self.head_problem else self.head

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """Return the fingerprint of the recording; the transform has no influence."""
        return self.fingerprint

    def forward(self, images: Tensor) -> Outputs:
        """Features and logits of rows (batch, features + classes)."""
        features = images[:, : self._width] if self._width else None
        logits = images[:, self._width :] if self._classes else None
        if logits is not None and self.class_subset:
            logits = logits[:, self.class_subset]
        if logits is None and not self.head_problem:
            assert features is not None  # else there is a problem with the head
            with torch.autocast(images.device.type, enabled=False):  # of mixed precision, which is for networks
                logits = self.head(features)
        return Outputs(logits, features)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Outputs:
        """The outputs of one batch, with labels, groups and keys."""
        made = self(batch["image"])
        return Outputs(made.logits, made.features, labels=batch["label"], groups=batch["group"], keys=batch["key"])

    def exact_outputs(self, batch: Any) -> Outputs:
        """Return the same outputs as `outputs`: there is no computation to accelerate."""
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
        """Describe the outputs by a few rows, and compare the recorded logits with those of the head.

        Raises:
            InvalidArgumentError: The precision of the run would round the recorded outputs.
        """
        if precision is not None and precision.convert_input(images).dtype.itemsize < images.dtype.itemsize:
            raise InvalidArgumentError(
                f"{self.name}: precision {precision.precision!r} would round the recorded outputs; pass"
                " precision='32-true' to the Trainer (on the command line: --precision 32), which is the default"
            )
        made = self(images.to(self.device))
        if made.logits is not None:
            check_logits(made.logits, self.name)
        if self._classes and not self.head_problem and not self._is_checked:
            self.head_problem = disagreement(self.head, made.require("features"), made.require("logits"))
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
            layer_problems=dict.fromkeys(layers, "recorded features have no hidden layers"),
            hint=self._hint,
            fingerprint=self.fingerprint,
        )
