"""Rebuild the network of a run from its record, or verify the network that the user passes."""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from oodlit.backbones.backbone import Backbone
from oodlit.backbones.identity import pattern
from oodlit.backbones.loading import LOCAL
from oodlit.backbones.recipe import made_from
from oodlit.base.current_folder import search_current_folder
from oodlit.base.errors import DataError, InvalidArgumentError, OodlitError
from oodlit.base.secrets import MASK
from oodlit.configuration import make, plan
from oodlit.configuration.kinds import shortened
from oodlit.detectors import FitOrigin
from oodlit.gate.gate_record import GateBackbone, recorded_transform
from oodlit.module import OODModule

_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_MAX_VALUES = 2**30


class NetworkFiles(NamedTuple):
    """Where the files of a network are.

    Args:
        source: The folder of a run or of a saved gate, named in errors.
        started_in: Working folder of the run, for relative paths; None for a saved gate.
        weights: The weights of a saved gate; None for a run.
    """

    source: Path
    started_in: Path | None = None
    weights: Path | None = None

    @property
    def advice(self) -> str:
        """How to pass the network."""
        has = "the weights of the run" if self.weights is None else "the same layers; the gate has its weights"
        return f"call Gate.load(..., model=network), where network is an nn.Module or OODModule with {has}"

    def find(self, file: object) -> object:
        """Return a recorded file of weights: as recorded, or relative to the working folder of the run."""
        if file in (None, "hub") or self.started_in is None or Path(str(file)).exists():
            return file
        other = self.started_in / str(file)
        return str(other) if other.exists() else file


def load_module(
    record: GateBackbone,
    *,
    model: OODModule | nn.Module | str | None,
    transform: Callable[..., Any] | None,
    files: NetworkFiles,
) -> OODModule:
    """Return a new module with the network and transform of a run.

    Args:
        record: Description of the network of the run.
        model: The network, or the dotted path of a class or function that builds it; None = rebuild it.
        transform: Transform of the run, if the record does not describe it.
        files: Where the files of the network are.

    Raises:
        DataError: The shape of an image in the record is not usable.
        InvalidArgumentError: The record does not describe the network or the transform, and it was not passed.
        FingerprintError: Weights, head or transform differ from those of the run.
    """
    shape, source = record.input_shape, files.source
    if not shape or min(shape) < 1 or math.prod(shape) > _MAX_VALUES:
        raise DataError(
            f"{source}: expected input_shape to have positive sizes and at most {_MAX_VALUES:,} values, got"
            f" {shape[:8]}; restore the record, or evaluate again"
        )
    if not isinstance(model, nn.Module):
        search_current_folder(*([] if files.started_in is None else [files.started_in]))
    module = _module(record, model, files)
    # The recipe imports what it names, so it is only followed if necessary.
    if (found := _transform_of(record) if transform is None else transform) is not None:
        module.transform = found
    if module.transform is None and record.transform != "None":
        raise InvalidArgumentError(
            f"{source}: the transform {shortened(record.transform)} cannot be rebuilt from the record; pass it as"
            " Gate.load(..., transform=...)"
        )
    module.probe(pattern(torch.empty(2, *record.input_shape)))
    origin = FitOrigin(record.fingerprint, record.width, record.num_classes)
    origin.check(module, source=f"the detector of {source}")
    return module


def lock_of(network: nn.Module) -> threading.Lock:
    """Return the lock of a network, shared by all gates on it, because its hooks keep the activations of one pass."""
    return _LOCKS.setdefault(network, threading.Lock())


def precision_context(precision: str) -> Callable[[torch.device], AbstractContextManager[Any]]:
    """Return a function of a device that returns the context of a forward pass in this precision.

    Raises:
        InvalidArgumentError: The run converted its weights, which would change the scores.
    """
    if precision not in _AUTOCAST:
        raise InvalidArgumentError(
            f"Gate: expected the precision of the run to be one of {', '.join(_AUTOCAST)}, got {precision!r}; evaluate"
            " again in one of these"
        )
    dtype = _AUTOCAST[precision]
    # Without mixed precision, an autocast around the gate must not change its decisions.
    return lambda device: torch.autocast(device.type, dtype, enabled=dtype is not None)


def _module(record: GateBackbone, model: OODModule | nn.Module | str | None, files: NetworkFiles) -> OODModule:
    """Return a new module around the network that is passed or rebuilt."""
    arguments, source, weights = dict(record.arguments), files.source, files.weights
    if not {"backbone", "weights"} <= arguments.keys():
        raise DataError(
            f"{source}: expected the record of the network to contain backbone and weights, got"
            f" {', '.join(arguments) or 'nothing'}; restore the record, or evaluate again"
        )
    backbone = arguments.pop("backbone")
    file: Any = files.find(arguments.pop("weights"))
    transform = None
    if model is not None:
        backbone, file = model, "hub"
    if isinstance(backbone, Backbone):  # its arguments state how to read its network
        own, transform = backbone.arguments, backbone.transform
        if own is None:
            raise InvalidArgumentError(f"{source}: expected a network as model=..., got a module with recorded outputs")
        backbone, arguments = backbone.network, {name: own[name] for name in arguments}
    elif backbone is None:
        backbone, transform = _of_configuration(record, files)
    elif weights is not None and (weights.parent / "config.json").exists():
        backbone = f"{LOCAL}{weights.parent}"
    elif isinstance(backbone, str) and backbone.startswith(LOCAL):
        backbone = f"{LOCAL}{files.find(backbone.removeprefix(LOCAL))}"
    if weights is not None and isinstance(backbone, nn.Module):
        backbone = copy.deepcopy(backbone)  # leave the weights of the user's network alone
    with _rebuilding(record, files, "rebuilt" if model is None else "used as model=..."):
        return OODModule(
            backbone, transform=transform, weights=file if weights is None else weights, name=record.name, **arguments
        )


def _of_configuration(record: GateBackbone, files: NetworkFiles) -> tuple[nn.Module, Callable[..., Any] | None]:
    """Build the network that the configuration of the run describes, and its transform."""
    described, source = record.configuration.get("backbone"), files.source
    if described is None:
        raise InvalidArgumentError(
            f"{source}: the network was built in code, so no record describes it; {files.advice}"
        )
    if MASK in str(described):
        raise InvalidArgumentError(
            f"{source}: the network has an argument with a secret, which the record masks ({MASK}); {files.advice}"
        )
    with _rebuilding(record, files):
        made = make(plan(_with_files(described, files), nn.Module, "backbone"))
    return (made.network, made.transform) if isinstance(made, OODModule) else (made, None)


def _with_files(described: Any, files: NetworkFiles) -> Any:
    """The description of the network with its weights where they are; a saved gate loads its own afterwards."""
    arguments = described.get("init_args") if isinstance(described, dict) else None
    if not isinstance(arguments, dict) or "weights" not in arguments:
        return described
    weights = None if files.weights is not None else files.find(arguments["weights"])
    return described | {"init_args": arguments | {"weights": weights}}


def _transform_of(record: GateBackbone) -> Callable[..., Any] | None:
    """Build the transform from the record or from the configuration of the data; None if neither describes it."""
    made: Callable[..., Any] | None = None
    if record.transform_recipe is not None:
        made = made_from(record.transform_recipe)
    elif (described := recorded_transform(record.configuration)) is not None:
        made = make(plan(described, Callable[..., Any], "data.transform"))
    return made


@contextmanager
def _rebuilding(record: GateBackbone, files: NetworkFiles, what: str = "rebuilt") -> Iterator[None]:
    """Draw random weights from the seed of the run, keep the caller's random state, and explain a failure."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(record.configuration.get("seed", 0)))
        try:
            yield
        except OodlitError as error:
            text = f"{files.source}: the network cannot be {what} ({error}); {files.advice}"
            raise InvalidArgumentError(text) from error
