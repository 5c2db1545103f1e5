"""What a backbone gives for one batch, its linear head, and what is known of it beforehand. Imports torch alone."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError

__all__ = ["NEEDS", "BackboneFacts", "Features", "Head", "Logits", "Model", "Outputs", "Scores", "unit", "version_of"]

T = TypeVar("T")

Logits: TypeAlias = Float[Tensor, "batch classes"]
Features: TypeAlias = Float[Tensor, "batch features"]
Scores: TypeAlias = Float[Tensor, " batch"]
"""A score for every image of a batch, higher = more in-distribution."""


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
        hint: What to do where a detector needs a field that is not available, for its reason; empty = nothing.
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
        object.__setattr__(self, "weight", _at_least_float32(self.weight.detach(), "Head.weight"))
        object.__setattr__(self, "bias", _at_least_float32(bias.detach(), "Head.bias"))

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

    def __call__(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        """Logits of `features`, computed in the wider of both dtypes."""
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        return torch.addmm(self.offset.to(dtype), features.to(dtype), self.weight.to(dtype).T)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Head":
        """The same head on another device or in another dtype."""
        return Head(self.weight.to(device=device, dtype=dtype), self.offset.to(device=device, dtype=dtype))


class _derived(cached_property[T]):  # reads like the decorator that it is
    """A cached property of `Outputs` that counts how often its value was written to."""

    def __get__(self, instance: "Outputs", owner: type | None = None) -> T:  # type: ignore[override]
        """Compute the value; called once, as the instance then has an attribute of this name."""
        value = super().__get__(instance, owner)
        if isinstance(value, Tensor):
            instance._versions[str(self.attrname)] = version_of(value)
        return value


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs of a backbone for one batch; row i of every field belongs to the same image.

    Logits and features in half precision are upcast to float32, so scores are formed in float32 at least.
    Quantities that several detectors need (softmax, log-sum-exp, unit features, ...) are computed once and kept.

    Args:
        logits: Shape (batch, classes), the model's own. None for a backbone without classifier.
        features: Shape (batch, features), the input of the last linear layer. None where only logits are known.
        labels: Shape (batch,), int64; -1 = no label.
        groups: Shape (batch,), int64; index of the OOD class, unit test or kind of shift; -1 = none.
        keys: `dataset/key` of every image; the identity of a sample.
        images: Shape (batch, channels, height, width), transformed images; only kept if a detector needs them.
        hidden: Hidden activations by name, each (batch, channels, ...); only kept if a detector needs them.
        model: Access to further forward passes; only given if a detector needs it.
        backbone: Fingerprint of the weights and the head that gave them; empty for outputs made by hand. Detectors that
            were fitted on another backbone refuse them.

    Raises:
        InvalidArgumentError: Shapes or dtypes do not fit.

    Example:
        >>> out = Outputs(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.ones(2, 3), keys=["a/0", "a/1"])
        >>> out.predictions.tolist(), len(out)
        ([0, 1], 2)
    """

    logits: Tensor | None = None
    features: Tensor | None = None
    labels: Tensor | None = None
    groups: Tensor | None = None
    keys: Sequence[str] | None = None
    images: Tensor | None = None
    hidden: Mapping[str, Tensor] | None = None
    model: Model | None = None
    backbone: str = field(default="", repr=False)
    _memo: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)
    _versions: dict[Hashable, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that all fields speak of the same number of images; upcast half precision."""
        for name in _TENSORS:
            _check_tensor(name, getattr(self, name))
        for name, activation in (self.hidden or {}).items():
            _check_tensor(f"hidden[{name!r}]", activation)
        for name in ("logits", "features"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.ndim != 2:
                raise InvalidArgumentError(
                    f"Outputs: {name} has shape {tuple(value.shape)}; (batch, {name}) is needed"
                    " - pool the features of every image to one vector"
                )
            object.__setattr__(self, name, _at_least_float32(value, f"Outputs.{name}"))
        for name in ("labels", "groups"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.ndim != 1 or value.dtype.is_floating_point or value.dtype.is_complex:
                raise InvalidArgumentError(
                    f"Outputs: {name} has shape {tuple(value.shape)} and dtype {value.dtype};"
                    " integers of shape (batch,) are needed"
                )
            object.__setattr__(self, name, value.long())
        sizes = {n: _size(v) for n in _PER_IMAGE if (v := getattr(self, n)) is not None}
        sizes |= {f"hidden[{n!r}]": _size(v) for n, v in (self.hidden or {}).items()}
        if not {"logits", "features"} & sizes.keys():
            raise InvalidArgumentError("Outputs: neither logits nor features are given; at least one is needed")
        if any(size != next(iter(sizes.values())) for size in sizes.values()):
            raise InvalidArgumentError(f"Outputs: fields differ in their number of images: {sizes}")
        for name, tensor in self._fields:
            self._versions[name] = version_of(tensor)

    def __len__(self) -> int:
        """Number of images."""
        return len(self._basis)

    @property
    def device(self) -> torch.device:
        """Device of logits and features."""
        return self._basis.device

    @property
    def _basis(self) -> Tensor:
        basis = self.features if self.logits is None else self.logits
        assert basis is not None  # checked in __post_init__
        return basis

    def require(self, name: str) -> Tensor:
        """The field `name`, or an error that says that it is missing.

        Raises:
            InvalidArgumentError: The field is None.
        """
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(f"Outputs: {name} is needed here, but this backbone or data set gives none")
        return value

    def memo(self, key: Hashable, compute: Callable[[], T]) -> T:
        """`compute()`, evaluated once per batch for every `key`; shares work between detectors."""
        if key not in self._memo:
            value = self._memo[key] = compute()
            if isinstance(value, Tensor):
                self._versions["memo", key] = version_of(value)
        return self._memo[key]  # type: ignore[return-value]  # the key decides the type of the value

    def changed(self) -> list[str]:
        """Which of the tensors that detectors share were written to since they were made; empty if none was.

        What was derived from the fields is then forgotten, and computed anew when it is asked for. Fields that were
        written to cannot be restored and are named every time. Writes through NumPy or `.data` are not seen.
        """
        derived = {name: value for name in _DERIVED if isinstance(value := self.__dict__.get(name), Tensor)}
        memo = {("memo", key): value for key, value in self._memo.items() if isinstance(value, Tensor)}
        found = self.changed_fields()
        stale = [name for name, tensor in derived.items() if self._versions[name] != version_of(tensor)]
        stale += [str(key[1]) for key, tensor in memo.items() if self._versions[key] != version_of(tensor)]
        if found or stale:
            self._memo.clear()
            for name in derived:
                del self.__dict__[name]
        return [*found, *stale]

    def changed_fields(self) -> list[str]:
        """Which of the fields were written to since they were made; empty if none was."""
        fields = dict(self._fields)
        found = [name for name, tensor in fields.items() if self._versions[name] != version_of(tensor)]
        return found or [name for name in fields if _WRITTEN in self._versions]

    def mark_written(self) -> None:
        """Let `changed` name all fields: one was written to, and those of inference mode do not tell which."""
        self._versions[_WRITTEN] = 1

    @cached_property  # detectors are many, and each is watched: what is asked for every time is formed once
    def _fields(self) -> list[tuple[str, Tensor]]:
        named = [(name, getattr(self, name)) for name in _TENSORS]
        named += [(f"hidden[{name!r}]", value) for name, value in (self.hidden or {}).items()]
        return [(name, value) for name, value in named if value is not None]

    @_derived
    def predictions(self) -> Int[Tensor, " batch"]:
        """Predicted class: argmax of the logits."""
        return self.require("logits").argmax(dim=1)

    @_derived
    def max_logits(self) -> Float[Tensor, " batch"]:
        """Largest logit."""
        return self.require("logits").amax(dim=1)

    @_derived
    def probabilities(self) -> Float[Tensor, "batch classes"]:
        """Softmax of the logits."""
        return self.require("logits").softmax(dim=1)

    @_derived
    def max_probabilities(self) -> Float[Tensor, " batch"]:
        """Largest softmax probability; 1 up to rounding for confident images, see `detectors.MSP` for its logarithm."""
        return self.probabilities.amax(dim=1)

    @_derived
    def logsumexp(self) -> Float[Tensor, " batch"]:
        """Log-sum-exp of the logits."""
        # log p_max = z_max - LSE. Since p_max >= 1/classes, this is as exact as a sum of exponentials, and cheaper.
        return self.max_logits - self.max_probabilities.log()

    @_derived
    def log_probabilities(self) -> Float[Tensor, "batch classes"]:
        """Log-softmax of the logits."""
        return self.require("logits").log_softmax(dim=1)

    @_derived
    def feature_norms(self) -> Float[Tensor, " batch"]:
        """Euclidean norm of the features."""
        norms: Tensor = torch.linalg.vector_norm(self.require("features"), dim=1)
        return norms

    @_derived
    def unit_features(self) -> Float[Tensor, "batch features"]:
        """Features divided by their norm; a zero vector stays zero."""
        return unit(self.require("features"))

    def select(self, rows: Tensor | slice) -> "Outputs":
        """The given rows (a slice, an index or a mask) as new outputs."""
        keys = self.keys
        if keys is not None:
            index = range(len(self))[rows] if isinstance(rows, slice) else torch.arange(len(self))[rows.cpu()].tolist()
            keys = [keys[i] for i in index]
        hidden = None if self.hidden is None else {n: v[rows] for n, v in self.hidden.items()}
        tensors = {n: v[rows] for n in _TENSORS if (v := getattr(self, n)) is not None}
        return replace(self, keys=keys, hidden=hidden, **tensors)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Outputs":
        """The same outputs on another device; `dtype` applies to logits and features."""
        moved = {n: v.to(device) for n in _TENSORS if (v := getattr(self, n)) is not None}
        hidden = None if self.hidden is None else {n: v.to(device) for n, v in self.hidden.items()}
        for name in ("logits", "features"):
            if dtype is not None and name in moved:
                moved[name] = moved[name].to(dtype)
        return replace(self, hidden=hidden, **moved)

    def __repr__(self) -> str:
        """Field names with shapes, never values."""
        shapes = (
            f"{f.name}={tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}"
            for f in fields(self)
            if f.repr and (v := getattr(self, f.name)) is not None
        )
        return f"Outputs({', '.join(shapes)})"


_TENSORS = ("logits", "features", "labels", "groups", "images")
_PER_IMAGE = (*_TENSORS, "keys")
_WRITTEN = "one of the fields"
_DERIVED = [name for name, value in vars(Outputs).items() if isinstance(value, _derived)]


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; -1 for one of inference mode, which keeps no count."""
    return -1 if tensor.is_inference() else tensor._version


def unit(vectors: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
    """Rows scaled to norm 1 without overflow or underflow; a zero row stays zero.

    Example:
        >>> unit(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    largest = vectors.abs().amax(dim=1, keepdim=True)
    scaled = vectors / largest.where(largest > 0, torch.ones_like(largest))
    norm: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / norm.where(norm > 0, torch.ones_like(norm))


def _size(value: Tensor | Sequence[str]) -> int:
    """Number of images; of a tensor not by `len`, which `torch.export` would take for a constant."""
    return value.shape[0] if isinstance(value, Tensor) else len(value)


def _check_tensor(name: str, value: object) -> None:
    if value is None or isinstance(value, Tensor):
        return
    array = type(value).__module__.partition(".")[0] == "numpy"
    way_out = f"torch.from_numpy({name})" if array else f"torch.as_tensor({name})"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise InvalidArgumentError(f"Outputs: {name} is a {kind}; a tensor is needed, such as {way_out}")


def _at_least_float32(value: Tensor, name: str) -> Tensor:
    if not value.dtype.is_floating_point:
        raise InvalidArgumentError(f"{name}: dtype {value.dtype}; floating point is needed")
    return value.float() if value.dtype.itemsize < 4 else value
