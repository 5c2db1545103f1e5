"""Wrap any classifier as a LightningModule that returns the logits and features of every image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodlit._lightning import Module, pl
from oodlit.backbones.acceleration import Acceleration
from oodlit.backbones.cut_head import with_class_subset
from oodlit.backbones.facts import as_in_run, check_logits, explain_pass, has_dropout, is_random, place_of
from oodlit.backbones.identity import WeightsHash, examine, pattern
from oodlit.backbones.layout import FEATURE_MAP
from oodlit.backbones.loading import class_name, default_transform, load_network, normalization_std, unwrapped
from oodlit.backbones.network_reader import NetworkReader
from oodlit.base.errors import InvalidArgumentError, OodlitError, RequirementError
from oodlit.base.fingerprint import join, sketch
from oodlit.base.known_classes.class_choice import ClassChoice
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.base.plan import RunPlan, plan_of

__all__ = ["FEATURE_MAP", "OODModule"]


class OODModule(Module):
    """Wrap a classifier for `trainer.predict`.

    A hook reads the features, which are the input of the final linear layer, during the single forward pass. The first
    batch verifies that head(features) equals the network's logits. If not, detectors that need the head are refused
    with the reason, and the others run. A backbone without a classifier returns features only.

    Every forward pass is made in eval mode. Afterwards, the network is in the mode that it was in before.

    Args:
        backbone: A timm name, optionally with the prefix "hf-hub:"; the dotted path of a class or function that returns
            a network; or any nn.Module that maps images to logits.
        head: Name of the final linear layer, such as "fc"; detected automatically for timm networks and if it is the
            last layer.
        transform: From a PIL image to a tensor; None (default) = timm's test transform of the network.
        weights: A local checkpoint file; or, for a timm name, "hub" (default) or None for random weights. An nn.Module
            keeps its weights unless a file is passed.
        name: Name of the backbone in results; None (default) = the timm name or the class name.
        output: The part of the return value that contains the logits: a position in a tuple, a key, or the name of an
            attribute. None (default) = the network returns its logits.
        features_only: True = the network has no classifier and returns features. None (default) = detected
            automatically from timm's settings or an Identity in place of the classifier.
        channel_axis: Axis of the channels by name of a hidden layer; only required if an error asks for it.
        channels_last: Whether images are in channels-last memory format during a run, which speeds up 16-bit
            convolutions. Verified against the plain network.
        compile: True or a mode of `torch.compile` to compile the network during a run. Verified against the plain
            network.
        class_subset: Classes to keep, by index, or for ImageNet-1k also by name or WordNet id: the head is cut to their
            rows. None (default) = all. A network with this number of classes stays as it is. Pass the same to the data.

    Raises:
        UnknownNameError: The model does not exist; the message lists the nearest names.
        InvalidArgumentError: The head cannot be found, or the weights cannot be loaded or are on the meta device.

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
        output: int | str | None = None,
        features_only: bool | None = None,
        channel_axis: Mapping[str, int] | None = None,
        channels_last: bool = False,
        compile: bool | str = False,
        class_subset: ClassChoice = None,
    ) -> None:
        """Load the network and find its head."""
        super().__init__()
        if not isinstance(backbone, str | nn.Module):
            is_exported = type(backbone).__name__ == "ExportedProgram"  # type: ignore[unreachable]
            hint = "; pass the network that its method module() returns" if is_exported else ""
            raise InvalidArgumentError(
                "OODModule: expected a network (nn.Module), a timm name, or the dotted path of a class or function that"
                f" returns a network, got {type(backbone).__name__}{hint}"
            )
        if isinstance(backbone, nn.Module):
            backbone = unwrapped(backbone)
        self.name = name or (backbone if isinstance(backbone, str) else class_name(backbone))
        self.network = load_network(backbone, weights, say=pl.utilities.rank_zero_info)
        if isinstance(self.network, OODModule):
            raise InvalidArgumentError(
                "OODModule: expected a network, got an OODModule. Wrapping it again would lose its transform and head."
                " Use the OODModule directly, or pass its attribute network. In configuration files, make its class the"
                " outermost class_path"
            )
        if empty := [parameter for parameter, value in self.network.named_parameters() if value.is_meta]:
            raise InvalidArgumentError(
                f"{self.name}: {len(empty)} parameters are on the meta device, without values; load their values"
            )
        self.transform = default_transform(self.network) if transform is None else transform
        read = partial(NetworkReader, head=head, output=output, features_only=features_only, channel_axis=channel_axis)
        self._reader, self.class_subset = with_class_subset(read(self.network, self.name), read, class_subset)
        self.network = self._reader.network
        self.arguments: dict[str, Any] | None = {
            "backbone": backbone if isinstance(backbone, str) else None,
            # Only timm draws random weights: any other function that creates a network has its own.
            "weights": None if weights is None and hasattr(self.network, "pretrained_cfg") else str(weights or "hub"),
            "head": head,
            "output": output,
            "features_only": features_only,
            "channel_axis": None if channel_axis is None else dict(channel_axis),
            **({"class_subset": list(self.class_subset)} if self.class_subset else {}),
        }
        """The constructor arguments as plain values, with None for an nn.Module; None for recorded outputs."""
        self.acceleration = Acceleration(self.network, self._reader, channels_last=channels_last, compile=compile)
        self._weights_hash = WeightsHash(self.network)
        self._examined = False
        self._example: Tensor | None = None

    @property
    def head_layers(self) -> tuple[str, ...]:
        """Names of the final linear layers; if there are several, their logits are averaged."""
        return self._reader.heads.layers

    @property
    def head_problem(self) -> str:
        """Why the logits are not a linear function of the features; empty if they are, or before the first batch."""
        return self._reader.heads.problem or ""

    @property
    def head(self) -> Head:
        """The linear head.

        Raises:
            RequirementError: The logits are not a linear function of the features; the message states why.
        """
        if self.head_problem:
            raise RequirementError(f"{self.name}: {self.head_problem}")
        return self._reader.heads.head

    def head_or_none(self) -> Head | None:
        """Return the linear head; None if there is no usable one."""
        return None if self.head_problem else self.head

    @property
    def fingerprint(self) -> str:
        """Text that identifies weights, head and transform, see `oodlit.base.fingerprint`; saved with every fit."""
        return self.fingerprint_with(self.transform)

    def fingerprint_with(self, transform: Callable[..., Any] | None) -> str:
        """Return the fingerprint with another transform, such as the transform of the data."""
        described, pictures, batch = examine(transform, self.name)
        network = self._sketch(batch) or self._sketch(self._example)
        return join(
            weights=self._weights_hash(afresh=True),
            head=self._reader.head_hash,
            transform=described,
            pictures=pictures,
            network=network,
            text=getattr(self.network, "text_sketch", ""),
        )

    def _sketch(self, images: Tensor | None) -> str:
        """Return a sketch of the network's outputs on fixed images; empty if it does not accept them."""
        if images is None:
            return ""
        device, dtype = place_of(self.network)
        inputs = images.to(device, dtype if images.is_floating_point() else None)
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                made = self._reader.read(inputs)
        except Exception:  # networks raise any error; `probe` reports it
            return ""
        return sketch(*(v.to(dtype) for v in (made.logits, made.features) if v is not None))

    def on_predict_start(self) -> None:
        """Apply `channels_last` and `compile`."""
        self.acceleration.start()

    def on_predict_end(self) -> None:
        """Undo `channels_last` and `compile`."""
        self.acceleration.stop()

    def exact_outputs(self, batch: Any) -> Outputs:
        """Return logits and features of a batch from the plain network: not compiled, in the precision of its weights.

        Args:
            batch: See `predict_step`; already on the device.
        """
        fields = _fields(batch)
        _, dtype = place_of(self.network)
        images = fields["image"].to(dtype) if fields["image"].is_floating_point() else fields["image"]
        with self.acceleration.eager(), torch.autocast(self.device.type, enabled=False):
            return self.outputs({**fields, "image": images}, self._plan)

    @property
    def std(self) -> Tensor:
        """Standard deviation that the transform in use divides by, shape (channels,)."""
        return normalization_std(self._plan.transform).to(self.device)

    @property
    def _plan(self) -> RunPlan:
        """The plan of the current run; outside a run, the module's transform without extra outputs."""
        return plan_of(self) or RunPlan(self.transform)

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes) from an extra forward pass, in float32 or float64."""
        return self._reader.logits(images)

    def features(self, images: Tensor) -> Tensor:
        """Return features (batch, features) from an extra forward pass, in float32 or float64.

        Raises:
            RequirementError: The features cannot be read; the message states why.
        """
        return self._reader.features(images)

    def logits_from_map(self, feature_map: Tensor) -> Tensor:
        """Return logits (batch, classes) from the last feature map (batch, channels, ...) of a timm network."""
        return self._reader.logits_from_map(feature_map)

    def forward(self, images: Tensor) -> Outputs:
        """Return logits and features of a batch of transformed images, from one forward pass."""
        return replace(self._reader.read(images), backbone=self._backbone())

    def _backbone(self) -> str:
        """Return the fingerprint of weights and head; empty during a run, which checks it in advance."""
        return "" if plan_of(self) is not None else join(weights=self._weights_hash(), head=self._reader.head_hash)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that are loaded after `probe`, as by `trainer.predict(ckpt_path=...)`.

        Raises:
            InvalidArgumentError: The detectors were already checked against the network.
        """
        if self._examined:
            raise InvalidArgumentError(
                f"{self.name}: the detectors were checked before Lightning loaded ckpt_path, so the weights cannot"
                " change now. Omit ckpt_path, and load the weights first with OODModule(network, weights=FILE) or"
                " OODModule.load_from_checkpoint"
            )

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Outputs:
        """Return the outputs of one batch, with labels, groups and keys if the data has them.

        Args:
            batch: A mapping with `image`, and optionally `label`, `group`, `key`; a pair (image, label); or a tensor.
            batch_idx: Position of the batch; ignored.
            dataloader_idx: Position of the stream; ignored.

        Raises:
            InvalidArgumentError: The batch has another type.
            DataError: The network failed; the message names the data set and the first key of the batch.
        """
        plain = partial(self.exact_outputs, batch)
        with explain_pass(self.name, self.network, _fields(batch)), self.acceleration.explain_failure(self.name, plain):
            made = self.outputs(batch, self._plan)
        return replace(made, backbone=self._backbone())

    def outputs(self, batch: Any, plan: RunPlan) -> Outputs:
        """Return the outputs of one batch, with the extra outputs and hidden layers of a plan.

        Args:
            batch: See `predict_step`.
            plan: The extra outputs and hidden layers to return.
        """
        fields = _fields(batch)
        if fields["image"].shape[0] == 0:  # all samples of the batch were skipped
            return self._reader.empty(self.device)
        made = self._reader.read(fields["image"], plan.hidden_layers)
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
    def probe(
        self,
        images: Tensor,
        num_train: int = 0,
        *,
        layers: Sequence[str] = (),
        precision: pl.plugins.Precision | None = None,
    ) -> BackboneFacts:
        """Return facts about the backbone from one forward pass over a few images, before a run.

        Args:
            images: A few transformed images, shape (batch, channels, height, width).
            num_train: Number of training images of the run.
            layers: Hidden layers that detectors read; each requires an extra forward pass.
            precision: Precision of the run, `trainer.precision_plugin`; images are converted in the same way.

        Raises:
            InvalidArgumentError: The network does not accept these images, or does not return logits: it returns
                something else, probabilities or NaN.
        """
        device, dtype = place_of(self.network)
        inputs, context = as_in_run(images.to(device), dtype, precision)
        if isinstance(precision, pl.plugins.HalfPrecision | pl.plugins.DoublePrecision):
            self._weights_hash.expect_conversion(precision.convert_input(torch.zeros(1)).dtype)
        self._reader.start_again()
        self._examined = True
        with torch.autocast(device.type, enabled=False), context:
            with explain_pass(self.name, self.network, {"image": inputs}):
                made = self._reader.read(inputs)
            if made.logits is not None:
                check_logits(made.logits, self.name)
            again = self._reader.read(inputs)
            has_map = made.logits is not None and self._reader.has_feature_map(inputs, made.logits)
            channels, layer_problems = self._probe_layers(inputs, layers)
        self._example = pattern(images[:2]) if images.is_floating_point() else None
        logits, features, problem = made.logits, made.features, self.head_problem
        given = {n for n, v in (("logits", logits), ("features", features)) if v is not None}
        return BackboneFacts(
            name=self.name,
            width=0 if features is None else features.shape[1],
            num_classes=0 if logits is None else logits.shape[1],
            head_problem=problem,
            signed_features=features is not None and bool((features < 0).any()),
            has_dropout=has_dropout(self.network),
            feature_map=has_map,
            num_train=num_train,
            available=frozenset({"labels", "images", "hidden", "model"} | given | (set() if problem else {"head"})),
            channels=channels,
            layer_problems=layer_problems,
            is_random=is_random((logits, features), (again.logits, again.features), self.name),
            fingerprint=join(text=getattr(self.network, "text_sketch", "")),
        )

    def _probe_layers(self, images: Tensor, layers: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the number of channels of every readable layer, and the reason for every other layer."""
        channels, problems = {}, {}
        for layer in layers:
            try:
                hidden = self._reader.read(images, (layer,)).hidden
                assert hidden is not None
                channels[layer] = hidden[layer].shape[1]
            except OodlitError as error:
                problems[layer] = str(error)
            except KeyError:
                problems[layer] = f"layer {layer!r} is not used in the forward pass"
        return channels, problems


def _fields(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping) and "image" in batch:
        return batch
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return {"image": batch[0], "label": batch[1]}
    if isinstance(batch, Tensor):
        return {"image": batch}
    keys = f" with keys {list(batch)}" if isinstance(batch, Mapping) else ""
    raise InvalidArgumentError(
        "OODModule: expected a batch to be a mapping with 'image' (optional: 'label', 'group', 'key'), a pair (image,"
        f" label) or a tensor, got {type(batch).__name__}{keys}"
    )


def _as_tensor(values: Any, device: torch.device) -> Tensor | None:
    return values if values is None or isinstance(values, Tensor) else torch.as_tensor(values, device=device)
