"""The network of a run, made again from its record or taken from the user, and seen to be the same."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from oodlit.backbones.backbone import Backbone
from oodlit.backbones.identity import pattern
from oodlit.backbones.recipe import made_from
from oodlit.base.lazy import search_current_folder
from oodlit.configuration import make, plan
from oodlit.detectors import FitOrigin
from oodlit.errors import InvalidArgumentError, OodlitError
from oodlit.gate.record import GateBackbone
from oodlit.module import OODModule

_AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_GIVE = "give the network: Gate.load(..., model=network), an nn.Module or OODModule with the weights of the run"


def load_module(
    record: GateBackbone,
    *,
    model: OODModule | nn.Module | str | None,
    transform: Callable[..., Any] | None,
    weights: Path | None,
    source: Path,
) -> OODModule:
    """The network of a record with its transform, in eval mode; a module of its own around what the user gives.

    Args:
        record: What is known about the network of the run.
        model: The network, or the dotted path of what makes it; None makes it again.
        transform: That of the run, where the record does not say how it is made.
        weights: A file of weights in place of those that the network has; None: it has them.
        source: The folder, for messages.

    Raises:
        InvalidArgumentError: The record does not say how network or transform are made; says what to give.
        FingerprintError: Weights, head or transform are not those of the run.
    """
    module = _module(record, model, weights, source)
    if transform is None:  # a record is not asked for what the user gives: it names what is imported
        transform = _transform_of(record)
    if transform is not None:
        module.transform = transform
    if module.transform is None and record.transform != "None":
        raise InvalidArgumentError(
            f"{source}: how its transform is made cannot be told from the record ({record.transform:.80}); give it:"
            " Gate.load(..., transform=...)"
        )
    module.probe(pattern(torch.empty(2, *record.input_shape)))
    origin = FitOrigin(record.fingerprint, record.width, record.num_classes)
    origin.check(module, source=f"the detector of {source}")
    return module


def lock_of(network: nn.Module) -> threading.Lock:
    """The lock of a network, one for all gates around it: what they read of a pass is kept by hooks in the network."""
    return _LOCKS.setdefault(network, threading.Lock())


def precision_context(precision: str) -> Callable[[torch.device], AbstractContextManager[Any]]:
    """What a forward pass of a run in this precision takes place in, for a device.

    Raises:
        InvalidArgumentError: The run converted its weights; scores would be others.
    """
    if precision not in _AUTOCAST:
        raise InvalidArgumentError(
            f"Gate: the run was made in precision {precision!r}; a gate computes in {', '.join(_AUTOCAST)} -"
            " evaluate in one of these first"
        )
    dtype = _AUTOCAST[precision]
    return lambda device: nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def _module(
    record: GateBackbone, model: OODModule | nn.Module | str | None, weights: Path | None, source: Path
) -> OODModule:
    """A new module around the network that is given or made again."""
    arguments = dict(record.arguments)
    backbone, file = arguments.pop("backbone"), arguments.pop("weights")
    transform = None
    if model is not None:
        backbone, file = model, "hub"
    if isinstance(backbone, Backbone):  # what it reads of the network is its own
        own, transform = backbone.arguments, backbone.transform
        if own is None:
            raise InvalidArgumentError(f"{source}: the module that is given has recorded outputs and no network")
        backbone, arguments = backbone.network, {name: own[name] for name in arguments}
    elif backbone is None:
        backbone, transform = _of_configuration(record, source)
    if weights is not None and isinstance(backbone, nn.Module):
        backbone = copy.deepcopy(backbone)  # the user's own keeps its weights
    with _seeded(record):
        return OODModule(
            backbone,
            transform=transform,
            weights=file if weights is None else weights,
            name=record.name,
            **arguments,
        )


def _of_configuration(record: GateBackbone, source: Path) -> tuple[nn.Module, Callable[..., Any] | None]:
    """The network that the configuration of a run describes by its class, and its transform."""
    described = record.configuration.get("backbone")
    if described is None:
        raise InvalidArgumentError(f"{source}: the network was made by code, and its record cannot say how; {_GIVE}")
    search_current_folder()
    try:
        with _seeded(record):
            made = make(plan(described, nn.Module, "backbone"))
    except OodlitError as error:
        raise InvalidArgumentError(f"{source}: its network cannot be made again: {error}; {_GIVE}") from error
    return (made.network, made.transform) if isinstance(made, OODModule) else (made, None)


def _transform_of(record: GateBackbone) -> Callable[..., Any] | None:
    """The transform that a record describes, or the configuration of the data; None if neither does."""
    if record.transform_recipe is not None:
        made: Callable[..., Any] = made_from(record.transform_recipe)
        return made
    described = (record.configuration.get("data", {}).get("init_args") or {}).get("transform")
    if described is None:
        return None
    search_current_folder()
    transform: Callable[..., Any] = make(plan(described, Callable[..., Any], "data.transform"))
    return transform


@contextmanager
def _seeded(record: GateBackbone) -> Iterator[None]:
    """Weights that were random are made from the seed of the run again; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(record.configuration.get("seed", 0)))
        yield
