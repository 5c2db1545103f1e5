"""OODModule: any classifier as a LightningModule that gives logits, features and identity of every image."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodlit._lightning import pl, warn_of_two
from oodlit.backbones.capture import capture
from oodlit.backbones.fingerprint import fingerprint
from oodlit.backbones.heads import find_head_layers, join_heads, to_vectors
from oodlit.backbones.loading import class_name, default_transform, load_network, normalisation_std, unwrapped
from oodlit.errors import InvalidArgumentError, OodlitError, RequirementError
from oodlit.outputs import BackboneFacts, Head, Outputs
from oodlit.plan import RunPlan, plan_of

__all__ = ["FEATURE_MAP", "OODModule"]

FEATURE_MAP = "feature_map"
"""Name under which `Outputs.hidden` holds the last block's map of a timm network."""


class OODModule(pl.LightningModule):
    """Wrap a classifier for `trainer.predict`.

    The features are the input of its final linear layer, taken by a hook in the one forward pass. On the first batch it
    is verified that head(features) equals the model's own logits; where it does not, detectors that need the head are
    refused with the reason while the others run.

    Args:
        backbone: A timm name, or any nn.Module that maps images to logits.
        head: Name of the final linear layer, such as "fc"; found by itself for timm networks and where it is the last.
        transform: From a PIL image to a tensor; timm's own test transform by default.
        weights: A local checkpoint file; or, for a timm name, "hub" (default) or None for random weights. A network
            keeps its own weights unless a file is given.
        name: How results call the backbone; the timm name or the class by default.

    Raises:
        UnknownNameError: timm knows no such model; names the nearest.
        InvalidArgumentError: The head cannot be found, or the weights cannot be loaded or are not there (meta device).

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> module = OODModule(network)
        >>> module(torch.rand(5, 3, 2, 2))
        Outputs(logits=(5, 3), features=(5, 8))
        >>> module.head.width
        8
    """

    def __init__(
        self,
        backbone: str | nn.Module,
        head: str | None = None,
        transform: Callable[..., Any] | None = None,
        *,
        weights: str | Path | None = "hub",
        name: str | None = None,
    ) -> None:
        """Load the network, find its head."""
        super().__init__()
        warn_of_two()
        if not isinstance(backbone, str | nn.Module):
            raise InvalidArgumentError(
                f"OODModule: backbone is a {type(backbone).__name__}; a timm name or an nn.Module is needed"
            )
        if isinstance(backbone, nn.Module):
            backbone = unwrapped(backbone)
        self.name = name or (backbone if isinstance(backbone, str) else class_name(backbone))
        self.network = load_network(backbone, weights)
        if empty := [parameter for parameter, value in self.network.named_parameters() if value.is_meta]:
            raise InvalidArgumentError(
                f"{self.name}: {len(empty)} parameters lie on the meta device and have no values, first {empty[0]!r};"
                " load the weights first"
            )
        self.transform = default_transform(self.network) if transform is None else transform
        self._candidates = find_head_layers(self.network, head)
        self.head_layers = self._candidates[0]
        """Names of the final linear layers; their logits are averaged where there are several."""
        self._head_problem: str | None = None
        self._examined = False

    @property
    def head_problem(self) -> str:
        """Why the logits do not follow from the features; empty if they do, or before the first batch."""
        return self._head_problem or ""

    @property
    def head(self) -> Head:
        """The linear head.

        Raises:
            RequirementError: The logits of the model do not follow from the features; says why.
        """
        if self._head_problem:
            raise RequirementError(f"{self.name}: {self._head_problem}")
        return self._join_heads()

    @property
    def fingerprint(self) -> str:
        """Hash of weights and transform; what fitted detectors belong to."""
        return self.fingerprint_with(self.transform)

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """The fingerprint with another transform, such as that of the data."""
        return fingerprint(self.network, transform)

    @property
    def std(self) -> Tensor:
        """Normalisation standard deviation of the transform in use, shape (channels,)."""
        return normalisation_std(self._plan.transform).to(self.device)

    @property
    def _plan(self) -> RunPlan:
        """The choices of the run that is going on; outside of one, the module's own transform and nothing extra."""
        return plan_of(self) or RunPlan(self.transform)

    def logits(self, images: Tensor) -> Tensor:
        """One more forward pass: logits (batch, classes), in float32 at least."""
        return self._as_logits(self.network(images), len(images))

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        """Logits (batch, classes) from the last block's map of a timm network."""
        forward_head = self._timm_method("forward_head")
        return self._as_logits(forward_head(feature_map), len(feature_map))

    def forward(self, images: Tensor) -> Outputs:
        """Logits and features of a batch of transformed images, in one forward pass."""
        return self._compute(images, ())

    def _compute(self, images: Tensor, hidden_layers: tuple[str, ...]) -> Outputs:
        """Logits, features and, where layers are named, their activations."""
        layers = tuple(n for n in hidden_layers if n != FEATURE_MAP)
        hidden: dict[str, Tensor] = {}
        heads = self.head_layers if self._head_problem is not None else _flatten(self._candidates)
        with capture(self.network, heads, layers) as kept:
            if FEATURE_MAP in hidden_layers:
                hidden[FEATURE_MAP] = self._timm_method("forward_features")(images)
                raw = self._timm_method("forward_head")(hidden[FEATURE_MAP])
            else:
                raw = self.network(images)
        hidden |= {n: kept[f"output:{n}"] for n in layers}
        logits = self._as_logits(raw, len(images))
        if self._head_problem is None:
            self._choose_head(logits, kept)
        features = self._features(kept)
        return Outputs(logits, features, hidden=hidden or None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that come after the backbone was examined, as with `trainer.predict(ckpt_path=...)`."""
        if self._examined:
            raise InvalidArgumentError(
                f"{self.name}: Lightning loads ckpt_path after the detectors were checked against the network; load the"
                " weights first - OODModule(network, weights=FILE), or OODModule.load_from_checkpoint - and leave"
                " ckpt_path out"
            )

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Outputs:
        """Outputs of one batch, with labels, groups and keys where the data gives them.

        Args:
            batch: A mapping with `image`, and optionally `label`, `group`, `key`; or a pair (image, label).
            batch_idx: Position of the batch; never used as identity.
            dataloader_idx: Position of the stream.
        """
        fields, plan = _fields(batch), self._plan
        if len(fields["image"]) == 0:  # every sample of the batch was skipped
            return Outputs(torch.zeros(0, self._join_heads().num_classes, device=self.device), keys=[])
        made = self._compute(fields["image"], plan.hidden_layers)
        return Outputs(
            made.logits,
            made.features,
            labels=_as_tensor(fields.get("label"), made.device),
            groups=_as_tensor(fields.get("group"), made.device),
            keys=fields.get("key"),
            images=fields["image"] if "images" in plan.extra_outputs else None,
            hidden=made.hidden,
            model=self if "model" in plan.extra_outputs else None,
        )

    @torch.no_grad()
    def probe(self, images: Tensor, num_train: int = 0) -> BackboneFacts:
        """Facts about the backbone from one forward pass over a few images, before a run.

        Args:
            images: A few transformed images, shape (batch, channels, height, width).
            num_train: Number of training images of the run.

        Raises:
            InvalidArgumentError: The network cannot take these images, or gives no logits or NaN.
        """
        was_training = self.network.training
        self.network.eval()
        self._head_problem, self._examined = None, True
        try:
            made = self._first_pass(images.to(next(self.network.parameters()).device))
            has_map = self._has_feature_map(images, made)
        finally:
            self.network.train(was_training)
        logits, features, problem = made.require("logits"), made.features, self.head_problem
        if bool(logits.isnan().any()):
            raise InvalidArgumentError(
                f"{self.name} gives NaN for the first images; look at its weights, the precision, the transform"
            )
        if bool((logits == logits[:, :1]).all()):
            warnings.warn(
                f"{self.name} gives the same logits for all classes; is it trained, are the right weights loaded?",
                stacklevel=2,
            )
        return BackboneFacts(
            name=self.name,
            width=0 if features is None else features.shape[1],
            num_classes=logits.shape[1],
            head_problem=problem,
            signed_features=features is not None and bool((features < 0).any()),
            has_dropout=any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.network.modules()),
            feature_map=has_map,
            num_train=num_train,
            available=frozenset({"logits", "labels", "images", "hidden", "model"})
            | ({"features"} if features is not None else set())
            | (set() if problem else {"head"}),
        )

    def _first_pass(self, images: Tensor) -> Outputs:
        try:
            made: Outputs = self(images)
        except OodlitError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:  # networks fail with any
            dtype, reason = next(self.network.parameters()).dtype, (str(error).splitlines() or [repr(error)])[0]
            raise InvalidArgumentError(
                f"{self.name}: the network cannot take a batch of shape {tuple(images.shape)} and dtype {images.dtype}"
                f" (its weights are {dtype}): {reason};"
                " the transform must give one float tensor (channels, height, width) per image, as the network needs it"
            ) from error
        return made

    def _join_heads(self) -> Head:
        return join_heads([self.network.get_submodule(n) for n in self.head_layers])

    def _as_logits(self, raw: object, batch: int) -> Tensor:
        if isinstance(raw, tuple | list) and raw and all(isinstance(r, Tensor) and r.ndim == 2 for r in raw):
            # Distilled networks give one tensor per head; their prediction is the mean.
            raw = torch.stack([r.float() for r in raw]).mean(dim=0)
        if not isinstance(raw, Tensor) or raw.ndim != 2 or not raw.dtype.is_floating_point:
            raise InvalidArgumentError(
                f"{self.name}: the network gives {_kind(raw)} instead of logits (batch, classes);"
                " wrap it in a module that returns logits, or use a network with a classifier"
            )
        if len(raw) != batch:
            raise InvalidArgumentError(
                f"{self.name}: the network gives {len(raw)} rows of logits for {batch} images; one per image is needed"
            )
        return raw

    def _choose_head(self, logits: Tensor, kept: Mapping[str, Tensor]) -> None:
        """Take the first candidate that gives the model's logits; else keep the first and the reason why not."""
        problems = []
        for candidate in self._candidates:
            self.head_layers = candidate
            problems.append(self._verify(logits, kept))
            if not problems[-1]:
                break
        else:
            self.head_layers = self._candidates[0]
        self._head_problem = "" if not problems[-1] else problems[0]

    def _features(self, kept: Mapping[str, Tensor]) -> Tensor | None:
        """Input of the head, one vector per image; None where there is none."""
        try:
            parts = [to_vectors(kept[n], self._width(n)) for n in self.head_layers]
        except (KeyError, OodlitError):
            return None  # the reason is in the head problem
        features = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        # A view on the tokens of an image would keep all of them alive in whoever keeps the features.
        is_view = features.untyped_storage().nbytes() > features.nbytes
        return features.clone() if is_view else features

    def _width(self, layer: str) -> int:
        weight = self.network.get_submodule(layer).weight
        assert isinstance(weight, Tensor)  # Linear or Conv2d
        return weight.shape[1]

    def _verify(self, logits: Tensor, kept: Mapping[str, Tensor]) -> str:
        """Why head(features) is not the model's logits; empty if it is, up to the precision of the pass."""
        head, layer = self._join_heads(), " + ".join(self.head_layers)
        unused = [n for n in self.head_layers if n not in kept]
        if unused:
            return f"its final layer {unused[0]!r} is not used in the forward pass"
        try:
            features = torch.cat([to_vectors(kept[n], self._width(n)) for n in self.head_layers], dim=1)
        except OodlitError as error:
            return str(error)
        if head.num_classes != logits.shape[1]:
            return f"layer {layer!r} has {head.num_classes} outputs but the network gives {logits.shape[1]} logits"
        rebuilt, given = head(features.detach().float()), logits.detach().float()
        tolerance = 1e-3 if features.dtype == torch.float32 and logits.dtype == torch.float32 else 0.05
        scale = max(float(given.abs().max()), float(rebuilt.abs().max()))
        off = float((rebuilt - given).abs().max())
        if not off <= tolerance * scale + 1e-12:
            return (
                f"the logits are not a linear function of the input of layer {layer!r}"
                f" (largest difference {off:.3g}, logits up to {scale:.3g})"
            )
        return ""

    def _has_feature_map(self, images: Tensor, made: Outputs) -> bool:
        if not (hasattr(self.network, "forward_features") and hasattr(self.network, "forward_head")):
            return False
        device = next(self.network.parameters()).device
        feature_map = self._timm_method("forward_features")(images.to(device))
        width = getattr(self.network, "num_features", 0)
        if not (isinstance(feature_map, Tensor) and feature_map.ndim == 4 and feature_map.shape[1] == width):
            return False
        return torch.allclose(self.logits_from_map(feature_map).float(), made.require("logits"), rtol=1e-3, atol=1e-4)

    def _timm_method(self, name: str) -> Callable[[Tensor], Any]:
        method: Callable[[Tensor], Any] | None = getattr(self.network, name, None)
        if not callable(method):
            raise RequirementError(f"{self.name}: the network has no {name}(); only timm networks give a feature map")
        return method


def _fields(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping) and "image" in batch:
        return batch
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return {"image": batch[0], "label": batch[1]}
    if isinstance(batch, Tensor):
        return {"image": batch}
    raise InvalidArgumentError(
        f"OODModule: a batch is a {type(batch).__name__}; a mapping with 'image' (and 'label', 'group', 'key'),"
        " a pair (image, label) or a tensor is needed"
    )


def _as_tensor(values: Any, device: torch.device) -> Tensor | None:
    return values if values is None or isinstance(values, Tensor) else torch.as_tensor(values, device=device)


def _kind(raw: object) -> str:
    """What a network gave, in the words of a message."""
    if isinstance(raw, Tensor):
        return f"a tensor of shape {tuple(raw.shape)} and dtype {raw.dtype}"
    if isinstance(raw, Mapping):
        return f"a {type(raw).__name__} with {', '.join(map(repr, raw))}"
    if isinstance(raw, tuple | list):
        return f"a {type(raw).__name__} of {len(raw)} ({', '.join(type(r).__name__ for r in raw[:4])})"
    return f"a {type(raw).__name__}"


def _flatten(candidates: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for candidate in candidates for name in candidate))
