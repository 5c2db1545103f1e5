"""Outputs of a backbone for one batch. Imports torch only."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.network import NEEDS, BackboneFacts, Head, Model, at_least_float32

__all__ = ["NEEDS", "BackboneFacts", "Features", "Head", "Logits", "Model", "Outputs", "Scores", "unit", "version_of"]

T = TypeVar("T")

Logits: TypeAlias = Float[Tensor, "batch classes"]
Features: TypeAlias = Float[Tensor, "batch features"]
Scores: TypeAlias = Float[Tensor, " batch"]
"""One score per image of a batch, higher = more in-distribution."""


class _derived(cached_property[T]):  # named like the decorator that it is
    """A cached property of `Outputs` that counts writes to its value."""

    def __get__(self, instance: "Outputs", owner: type | None = None) -> T:  # type: ignore[override]
        """Compute the value; called once, since the instance then has an attribute of this name."""
        value = super().__get__(instance, owner)
        if isinstance(value, Tensor):
            instance._versions[str(self.attrname)] = version_of(value)
        return value


class Memo:
    """Values that are computed once and shared; writes to their tensors are counted."""

    memoized: dict[Hashable, object]
    """Results of `memo`, by key."""
    _versions: dict[Hashable, int]

    def memo(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()`, evaluated once for every `key`, to share work between detectors."""
        if key not in self.memoized:
            self.memoized[key] = compute()
            self._versions.update({("memo", key, place): version for place, version in self._memo_versions(key)})
        return self.memoized[key]  # type: ignore[return-value]  # the key decides the type of the value

    def stale_keys(self) -> list[str]:
        """Return the keys of values that were written to, once per tensor."""
        places = ((key, *one) for key in self.memoized for one in self._memo_versions(key))
        return [str(key) for key, place, version in places if self._versions["memo", key, place] != version]

    def _memo_versions(self, key: Hashable) -> list[tuple[int, int]]:
        value = self.memoized[key]
        parts = enumerate(value if isinstance(value, tuple) else (value,))
        return [(place, version_of(part)) for place, part in parts if isinstance(part, Tensor)]


@dataclass(frozen=True, eq=False)
class Outputs(Memo):
    """Outputs of a backbone for one batch; row i of every field belongs to the same image.

    Logits and features in half precision are upcast, so scores are computed in float32 at least. Quantities that
    several detectors use (softmax, log-sum-exp, unit features, ...) are computed once and cached.

    Args:
        logits: Shape (batch, classes), as returned by the model. None for a backbone without a classifier.
        features: Shape (batch, features), the input of the last linear layer. None if only logits are known.
        labels: Shape (batch,), int64; -1 = no label.
        groups: Shape (batch,), int64; index of the OOD class, unit test or kind of shift; -1 = none.
        keys: `dataset/key` of every image, which identifies it.
        images: Shape (batch, channels, height, width), transformed images; only kept if a detector requires them.
        hidden: Hidden activations by name, each (batch, channels, ...); only kept if a detector requires them.
        model: Access to extra forward passes; only given if a detector requires it.
        backbone: Fingerprint of weights and head; empty for outputs built by hand. Detectors fitted on another backbone
            refuse the outputs.

    Raises:
        InvalidArgumentError: Shapes or dtypes do not match.

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
    memoized: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)
    _versions: dict[Hashable, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that all fields have the same number of images; upcast half precision."""
        for name in _TENSORS:
            _check_tensor(name, getattr(self, name))
        for name, activation in (self.hidden or {}).items():
            _check_tensor(f"hidden[{name!r}]", activation)
        for name, axis in (("logits", "classes"), ("features", "features")):
            if (value := getattr(self, name)) is None:
                continue
            if value.ndim != 2:
                fix = f"pool {name} to one vector per image" if value.ndim > 2 else "pass one row per image"
                raise InvalidArgumentError(
                    f"Outputs: expected {name} of shape (batch, {axis}), got {tuple(value.shape)}; {fix}"
                )
            object.__setattr__(self, name, at_least_float32(value, f"Outputs.{name}"))
        for name in ("labels", "groups"):
            if (value := getattr(self, name)) is None:
                continue
            if value.ndim != 1 or value.dtype.is_floating_point or value.dtype.is_complex:
                raise InvalidArgumentError(
                    f"Outputs: expected {name} to be integers of shape (batch,), got shape {tuple(value.shape)} and"
                    f" dtype {value.dtype}"
                )
            object.__setattr__(self, name, value.long())
        sizes = {n: _size(v) for n in _PER_IMAGE if (v := getattr(self, n)) is not None}
        sizes |= {f"hidden[{n!r}]": _size(v) for n, v in (self.hidden or {}).items()}
        if not {"logits", "features"} & sizes.keys():
            raise InvalidArgumentError("Outputs: expected logits or features, got neither")
        if any(size != next(iter(sizes.values())) for size in sizes.values()):
            raise InvalidArgumentError(f"Outputs: fields differ in their number of images: {str(sizes)[1:-1]}")
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
        """Return the field `name`, or raise if it is missing.

        Raises:
            InvalidArgumentError: The field is None.
        """
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(f"Outputs: missing {name}, which the backbone or data set does not provide")
        return value

    def changed(self) -> list[str]:
        """Return the names of shared tensors that were written to since their creation.

        Derived values are then discarded and recomputed on demand. Modified fields cannot be restored and are named
        every time. Writes through NumPy or `.data` are not detected.
        """
        derived = {name: value for name in _DERIVED if isinstance(value := self.__dict__.get(name), Tensor)}
        found = self.changed_fields()
        stale = [name for name, tensor in derived.items() if self._versions[name] != version_of(tensor)]
        stale += self.stale_keys()
        if found or stale:
            self.memoized.clear()
            for name in derived:
                del self.__dict__[name]
        return [*found, *stale]

    def changed_fields(self) -> list[str]:
        """Return the names of fields that were written to since their creation."""
        fields = dict(self._fields)
        found = [name for name, tensor in fields.items() if self._versions[name] != version_of(tensor)]
        return found or [name for name in fields if _WRITTEN in self._versions]

    def mark_written(self) -> None:
        """Mark all fields as changed: one of them was modified, and inference-mode tensors do not show which."""
        self._versions[_WRITTEN] = 1

    @cached_property  # cached, since it is read for every one of many detectors
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
    def median_logits(self) -> Float[Tensor, " batch"]:
        """Median of the logits above -inf, the lower of two."""
        logits = self.require("logits")
        return logits.where(logits > -float("inf"), torch.full_like(logits, float("nan"))).nanmedian(dim=1).values

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
        """Return the given rows (a slice, an index or a mask) as new outputs."""
        keys = self.keys
        if keys is not None:
            index = range(len(self))[rows] if isinstance(rows, slice) else torch.arange(len(self))[rows.cpu()].tolist()
            keys = [keys[i] for i in index]
        return replace(self, keys=keys, **self._mapped(lambda value: value[rows]))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Outputs":
        """Return the outputs on another device; `dtype` applies to logits and features."""
        moved = self._mapped(lambda value: value.to(device))
        for name in ("logits", "features"):
            if dtype is not None and name in moved:
                moved[name] = moved[name].to(dtype)
        return replace(self, **moved)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Apply a function to all tensors, and return the results by field."""
        hidden = None if self.hidden is None else {n: change(v) for n, v in self.hidden.items()}
        return {"hidden": hidden} | {n: change(v) for n in _TENSORS if (v := getattr(self, n)) is not None}

    def __repr__(self) -> str:
        """Return field names with shapes, without values."""
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
    """Return how often a tensor was written to; -1 for inference-mode tensors, which keep no count."""
    return -1 if tensor.is_inference() else tensor._version


def unit(vectors: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
    """Scale rows to norm 1 without overflow or underflow; a zero row stays zero.

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
    """Return the number of images; not by len(), which `torch.export` would treat as a constant."""
    return value.shape[0] if isinstance(value, Tensor) else len(value)


def _check_tensor(name: str, value: object) -> None:
    if value is None or isinstance(value, Tensor):
        return
    array = type(value).__module__.partition(".")[0] == "numpy"
    way_out = f"torch.from_numpy({name})" if array else f"torch.as_tensor({name})"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise InvalidArgumentError(f"Outputs: expected {name} to be a tensor, got {kind}; use {way_out}")
