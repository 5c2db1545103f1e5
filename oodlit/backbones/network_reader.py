"""Read logits, features and hidden activations from one forward pass of a network."""

import functools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from oodlit.backbones.capture import Call, capture, survey
from oodlit.backbones.facts import check_features, hides_layers, is_headless
from oodlit.backbones.heads import Heads, find_head_layers, gives
from oodlit.backbones.layout import FEATURE_MAP, channel_axis, channels_first
from oodlit.backbones.loading import eval_mode
from oodlit.backbones.returned import (
    Output,
    all_are_logits,
    as_logits,
    as_vectors,
    check_no_probabilities,
    pick,
    warn_of_probabilities,
)
from oodlit.base.errors import InvalidArgumentError, OodlitError, RequirementError, UnknownNameError
from oodlit.base.outputs import Outputs
from oodlit.base.text.warn import warn
from oodlit.base.value_description import hash_of

P = ParamSpec("P")
R = TypeVar("R")


def _in_eval_mode(method: Callable[Concatenate["NetworkReader", P], R]) -> Callable[Concatenate["NetworkReader", P], R]:
    """Make the passes of a method in eval mode: the network belongs to the caller, who may be training it."""

    @functools.wraps(method)
    def wrapped(self: "NetworkReader", *args: P.args, **kwargs: P.kwargs) -> R:
        with eval_mode(self.network):
            return method(self, *args, **kwargs)

    return wrapped  # type: ignore[return-value]  # mypy does not see through `functools.wraps` here


class NetworkReader:
    """Reads the outputs of a network. The first outputs determine its head.

    Every pass is made in eval mode; the mode of the network is restored afterwards.

    Args:
        network: The network.
        name: Name of the network in messages.
        head: Name of its final layer; None = detected automatically.
        output: Which part of the output contains the logits, or the features without a classifier.
        features_only: Whether it has no classifier; None = detected automatically.
        channel_axis: Channel axis by hidden layer, if it cannot be detected.

    Raises:
        InvalidArgumentError: The head cannot be found.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        *,
        head: str | None = None,
        output: Output = None,
        features_only: bool | None = None,
        channel_axis: Mapping[str, int] | None = None,
    ) -> None:
        self.network, self.name, self.output, self.asked_axes = network, name, output, dict(channel_axis or {})
        self.features_only = is_headless(network) if features_only is None and head is None else bool(features_only)
        if self.features_only and head is not None:
            raise InvalidArgumentError(f"{name}: pass either head={head!r} or features_only=True, not both")
        self.hidden_from_hooks = hides_layers(network)
        if self.hidden_from_hooks and head is not None:
            raise InvalidArgumentError(f"{name}: {self.hidden_from_hooks}; omit head={head!r}")
        problem = "the network has no classifier" if self.features_only else self.hidden_from_hooks or None
        self.heads = Heads(network, () if problem else find_head_layers(network, head), problem)
        self.sizes: dict[str, int] = {}
        self.memory_format = torch.preserve_format
        """Memory format of the images that the network receives."""
        self.copy_outputs = False
        """Whether the next pass of the network may overwrite its outputs."""
        self._structure: nn.Module = getattr(network, "_orig_mod", network)  # without the wrapper of `torch.compile`
        self.start_again()

    def start_again(self) -> None:
        """Discard what was determined from earlier outputs."""
        self.heads.start_again()
        self._has_several_heads = self._is_checked = False
        self._axes: dict[str, int] = {}

    @property
    def head_hash(self) -> str:
        """A hash of what is read from the network; empty until the head is known."""
        if self.heads.problem is None:
            return ""
        layers = [name.replace("_orig_mod.", "") for name in self.heads.layers]
        axes = f" {sorted(self.asked_axes.items())}" if self.asked_axes else ""
        return hash_of(f"{layers} {self.output!r} {self.features_only}{axes}")[:8]

    @_in_eval_mode
    def read(self, images: Tensor, hidden_layers: Sequence[str] = ()) -> Outputs:
        """Return logits, features and, for named layers, their activations as (batch, channels, ...)."""
        layers = tuple(n for n in hidden_layers if n != FEATURE_MAP)
        self._check_layers(layers)
        hidden: dict[str, Tensor] = {}
        with capture(self.network, self.heads.wanted, layers) as kept:
            if FEATURE_MAP in hidden_layers:
                feature_map = self._timm_method("forward_features")(images.clone())
                hidden[FEATURE_MAP] = self._channels_first(FEATURE_MAP, feature_map).clone()
                raw = self._timm_method("forward_head")(feature_map)
            else:
                raw = self._run(images)
        hidden |= {n: self._channels_first(n, kept[f"output:{n}"]) for n in layers}
        raw = pick(raw, self.output, self.name)
        logits = features = None
        if self.features_only:
            features = as_vectors(raw, images.shape[0], self.name)
        else:
            logits = self._as_logits(raw, images.shape[0], kept)
            is_first = not self._is_checked
            if is_first:
                self._check_first(logits, kept, images)
            features = self.heads.features(kept)
            if self.heads.problem and features is not None and len(features) != len(images):
                features = None  # the problem says why
            if is_first:
                check_features(self.heads, self.name, features)
        self.sizes = {n: v.shape[1] for n, v in (("logits", logits), ("features", features)) if v is not None}
        return Outputs(logits, features, hidden=hidden or None)

    @_in_eval_mode
    def logits(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes) from an extra forward pass, in float32 at least."""
        if self.features_only:
            raise RequirementError(f"{self.name} has no classifier and returns no logits")
        raw = pick(self._run(images), self.output, self.name)
        if self.output is None and all_are_logits(raw) and not self._has_several_heads:
            return self.read(images).require("logits")  # determines whose outputs they are
        return self._as_logits(raw, len(images), {})

    def features(self, images: Tensor) -> Tensor:
        """Return features (batch, features) from an extra forward pass, in float32 at least."""
        if (features := self.read(images).features) is None:
            raise RequirementError(f"the features of {self.name} cannot be read: {self.heads.problem}")
        return features

    @_in_eval_mode
    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        """Return logits (batch, classes) for the last block's map (batch, channels, ...) of a timm network."""
        own = feature_map.movedim(1, self._axes.get(FEATURE_MAP, 1)).clone()
        raw = pick(self._timm_method("forward_head")(own), self.output, self.name)
        return self._as_logits(raw, len(feature_map), {})

    @_in_eval_mode
    def has_feature_map(self, images: Tensor, logits: Tensor) -> bool:
        """Return whether the last block has a map (batch, channels, height, width) that determines the logits."""
        if not (hasattr(self.network, "forward_features") and hasattr(self.network, "forward_head")):
            return False
        try:
            feature_map = self._timm_method("forward_features")(images.clone())
            if not (isinstance(feature_map, Tensor) and feature_map.ndim == 4):
                return False
            feature_map = self._channels_first(FEATURE_MAP, feature_map)
            if feature_map.shape[1] != getattr(self.network, "num_features", 0):
                return False
            rebuilt = self.logits_from_map(feature_map)
        except OodlitError:
            return False
        return torch.allclose(rebuilt.float(), logits, rtol=1e-3, atol=1e-4)

    def empty(self, device: torch.device) -> Outputs:
        """Return outputs for zero images, with the usual numbers of logits and features."""
        sizes = self.sizes
        if not sizes and not self.features_only and self.heads.layers:
            sizes = {"logits": self.heads.head.num_classes}
        sizes = sizes or {"features": getattr(self.network, "num_features", 1)}
        made = {name: torch.zeros(0, width, device=device) for name, width in sizes.items()}
        return Outputs(made.get("logits"), made.get("features"), keys=[])

    def _run(self, images: Tensor) -> Any:
        """Run one pass on a copy, since a network may normalize its input in place."""
        is_picture = images.ndim == 4  # other layouts only apply to pictures
        raw = self.network(images.clone(memory_format=self.memory_format if is_picture else torch.preserve_format))
        return tree_map_only(Tensor, torch.clone, raw) if self.copy_outputs else raw

    def _as_logits(self, raw: Any, batch: int, kept: Mapping[str, Any]) -> Tensor:
        if self.output is None and all_are_logits(raw):
            # Distilled networks return one tensor per head, and predict their mean.
            if not self._has_several_heads and self._are_those_of_heads(raw, kept):
                self._has_several_heads = True
                self._warn_of_mean()
            if self._has_several_heads:
                raw = torch.stack([r.float() for r in raw]).mean(dim=0)
        return as_logits(raw, batch, self.name)

    def _are_those_of_heads(self, raw: Sequence[Tensor], kept: Mapping[str, Any]) -> bool:
        """Return whether the network lists one head per output, and each head returned its output."""
        get_classifier = getattr(self.network, "get_classifier", None)
        layers = self.heads.candidates[0] if self.heads.candidates else ()
        if not callable(get_classifier) or len(layers) != len(raw) or not kept:
            return False
        return all(gives(self.network.get_submodule(n), kept.get(n), r) for n, r in zip(layers, raw, strict=True))

    def _warn_of_mean(self) -> None:
        """Warn that outputs are averaged, unless timm identifies them as distilled heads."""
        if any(kind.__module__.startswith("timm.models.") for kind in type(self._structure).__mro__):
            return
        layers = self.heads.candidates[0]
        warn(
            f"{self.name}: get_classifier() returns {len(layers)} heads, {' and '.join(map(repr, layers))}. The"
            " mean of their outputs is used as logits, as for distilled networks. If this is wrong, select one"
            " output, for example the first: OODModule(..., output=0)"
        )

    def _check_first(self, logits: Tensor, kept: dict[str, Any], images: Tensor) -> None:
        """Find the head by the first outputs, and refuse probabilities."""

        def look_at_all() -> list[Call]:
            with torch.no_grad(), survey(self._structure) as calls:
                self._structure(images.clone())
            return calls

        heads = copy(self.heads)
        if heads.problem is None:
            heads.choose(logits, kept, look_at_all)
        if heads.problem:  # the output of a linear layer is no softmax
            check_no_probabilities(logits, self.name)
            warn_of_probabilities(logits, self.name)
        self.heads, self._is_checked = heads, True

    def _check_layers(self, layers: Sequence[str]) -> None:
        if layers and self.hidden_from_hooks:
            raise RequirementError(f"{self.name}: layer {layers[0]!r} is requested, but {self.hidden_from_hooks}")
        known = dict(self._structure.named_modules()) if layers else {}
        for layer in layers:
            if layer not in known:
                raise InvalidArgumentError(f"{self.name}: {UnknownNameError.of('layer', layer, filter(None, known))}")

    def _channels_first(self, layer: str, activation: object) -> Tensor:
        if layer not in self._axes:
            self._axes[layer] = channel_axis(self._structure, layer, activation, self.asked_axes)
        return channels_first(activation, layer, self._axes[layer])

    def _timm_method(self, name: str) -> Callable[[Tensor], Any]:
        method: Callable[[Tensor], Any] | None = getattr(self.network, name, None)
        if not callable(method):
            raise RequirementError(f"expected a timm network, but {self.name} has no method {name}()")
        return method
