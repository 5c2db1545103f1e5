"""From a timm name or an nn.Module to a network with its weights, and its own transform."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.backbones.hub import check_hub
from oodlit.base.lazy import import_object
from oodlit.errors import InvalidArgumentError, UnknownNameError

_log = logging.getLogger(__name__)
_HUB = ("hf-hub:", "hf_hub:")
"""What stands in front of a repository of the hub; what network it holds says a file in it."""
_OTHER_WEIGHTS = "give weights=PATH of a local checkpoint, or weights=None (--weights none) for random weights"


def load_network(
    backbone: str | nn.Module, weights: str | Path | None = "hub", *, say: Callable[[str], object] = _log.info
) -> nn.Module:
    """A network in eval mode, with its weights.

    Args:
        backbone: timm model name, with or without pretrained tag, such as "resnet50.a1_in1k", or with "hf-hub:" in
            front of a repository; or the dotted path of a class or function that gives a network, such as
            "my_package.models.MyNet"; or a network.
        weights: A local file (.safetensors, a state dict that loads with `weights_only=True`, or a checkpoint of
            Lightning, whose prefix "model." or the like is taken off); "hub" (published weights) or None (random
            weights) for a name. A network, or what a dotted path gives, keeps its own unless a file is given.
        say: Called with a line about what was done to the names of the weights.

    Raises:
        UnknownNameError: There is no such model; names the nearest.
        InvalidArgumentError: The weights cannot be loaded; within seconds where there is no network to fetch them.
    """
    name = backbone if isinstance(backbone, str) else class_name(backbone)
    from_file = weights is not None and weights != "hub"
    if from_file and not Path(str(weights)).is_file():
        raise InvalidArgumentError(f"backbone {name!r}: weights file {str(weights)!r} does not exist")
    if isinstance(backbone, str) and not _is_of_timm(name):
        backbone = build_from_path(name)
    if not isinstance(backbone, str) and not from_file:
        return frozen_mode(backbone)
    import timm  # noqa: PLC0415  # a second of import that nobody pays who brings a network with its weights

    named = isinstance(backbone, str)
    if named and (weights == "hub" or name.startswith(_HUB)):
        _check_published(name, config_only=weights != "hub")
    try:
        with quiet_hub():
            network = (
                timm.create_model(backbone, pretrained=weights == "hub") if isinstance(backbone, str) else backbone
            )
        if from_file:
            load_weights(network, Path(str(weights)), say)
    except Exception as error:  # the hub, the file format and the shapes each fail with a type of their own
        way_out = f"; {_OTHER_WEIGHTS}" if named else ""
        raise InvalidArgumentError(
            f"backbone {name!r}: weights {str(weights)!r} cannot be loaded ({type(error).__name__}: {error}){way_out}"
        ) from error
    return frozen_mode(network)


def load_weights(network: nn.Module, file: Path, say: Callable[[str], object] = _log.info) -> None:
    """Load a file into a network; every weight must be there.

    Checkpoints of a module around the network name its weights "model.conv.weight" and the like: the one prefix under
    which all of them are found is taken off.
    """
    import timm  # noqa: PLC0415

    if file.suffix.lower() in (".npz", ".npy"):
        timm.models.load_checkpoint(network, str(file), strict=True)
        return
    state = timm.models.load_state_dict(str(file), weights_only=True)
    own = set(network.state_dict())
    if own and not own <= set(state):
        first = min(own, key=len)
        starts = {key.removesuffix(first) for key in state if key.endswith(first)}
        whole = sorted(start for start in starts if all(start + key in state for key in own))
        if len(whole) > 1:
            raise InvalidArgumentError(
                f"the file holds these weights {len(whole)} times, with the prefixes {', '.join(map(repr, whole))};"
                " keep one of them"
            )
        if whole:
            left = sum(not key.startswith(whole[0]) for key in state)
            others = f"; {left} entries without it belong to other parts and are left out" if left else ""
            say(f"oodlit: {file}: the prefix {whole[0]!r} of the weights is taken off{others}")
            state = {key.removeprefix(whole[0]): v for key, v in state.items() if key.startswith(whole[0])}
    network.load_state_dict(state, strict=True)


def frozen_mode(network: nn.Module) -> nn.Module:
    """The network in eval mode; one that is exported has one mode only, and refuses to be asked for another."""
    try:
        return network.eval()
    except NotImplementedError:
        return Exported(network)


class Exported(nn.Module):
    """Around an exported program, whose mode was fixed when it was exported."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program
        self.training = False

    def train(self, mode: bool = True) -> "Exported":
        """Nothing changes: the graph is fixed."""
        return self

    def forward(self, images: Tensor) -> Any:
        """What the program gives."""
        return self.program(images)


def _is_of_timm(name: str) -> bool:
    """Whether timm makes this network.

    Raises:
        UnknownNameError: It does not, and the name is no dotted path of a module that is there.
    """
    import timm  # noqa: PLC0415

    if name.startswith((*_HUB, "local-dir:")) or timm.is_model(name):
        return True
    try:
        found = find_spec(name.rpartition(".")[0])
    except (ImportError, ValueError):  # ValueError: no name in front of the dot
        found = None
    if found is None:
        raise UnknownNameError.of("backbone", name, timm.list_models())
    return False


def build_from_path(path: str) -> nn.Module:
    """The network that a class or function at a dotted path gives, called without arguments.

    Raises:
        InvalidArgumentError: There is none, it needs arguments, or it gives something else.
    """
    found = import_object(path, f"backbone {path!r}")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InvalidArgumentError(f"backbone {path!r} is a {type(found).__name__}; a class or function is needed")
    try:
        signature(found).bind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"backbone {path!r}: {error}; give class_path and init_args in a configuration, or OODModule(network)"
        ) from None
    except ValueError:  # built-in callables show no signature
        pass
    network = found()
    if not isinstance(network, nn.Module):
        raise InvalidArgumentError(f"backbone {path!r} gives a {type(network).__name__}; an nn.Module is needed")
    return network


def _check_published(name: str, *, config_only: bool = False) -> None:
    """Refuse at once where something of the hub is needed and cannot be had."""
    import timm  # noqa: PLC0415

    if name.startswith(_HUB):
        needed = ["config.json"] if config_only else ["model.safetensors", "pytorch_model.bin"]
        way_out = "give a name of timm, or an nn.Module"
        check_hub(name.partition(":")[2], needed, what=f"backbone {name!r}", way_out=way_out)
        return
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id or config.file:
        return  # timm says itself what is missing, or takes the weights from elsewhere
    old = Path(torch.hub.get_dir(), "checkpoints", str(config.url).rpartition("/")[2])
    if config.url and old.is_file():  # the cache of older versions of timm, which it can be told to use
        return
    files = ["model.safetensors", "pytorch_model.bin"]
    if config.hf_hub_filename:
        files = [config.hf_hub_filename, f"{config.hf_hub_filename.rpartition('.')[0]}.safetensors"]
    check_hub(config.hf_hub_id, files, what=f"backbone {name!r}", way_out=_OTHER_WEIGHTS)


def unwrapped(network: nn.Module) -> nn.Module:
    """The network behind `DataParallel` or `DistributedDataParallel`, with parameters that autograd can use.

    The Trainer spreads the work itself; the wrapper would only change names of layers and of weights. Parameters made
    under `torch.inference_mode()` would fail in detectors that take gradients, so such a network is copied.
    """
    while isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        network = network.module
    if isinstance(network, torch.jit.ScriptModule):
        return network
    if any(tensor.is_inference() for tensor in (*network.parameters(), *network.buffers())):
        network = copy.deepcopy(network)
    return network


def class_name(network: nn.Module) -> str:
    """Name of the class, also of a compiled network."""
    return type(getattr(network, "_orig_mod", network)).__name__


def quiet_hub() -> AbstractContextManager[None]:
    """Without a line for every attempt to reach the hub; the error that ends them says what failed."""
    import huggingface_hub.utils  # noqa: F401, PLC0415 - sets the level of its logger once, when it is imported

    return quiet_loggers("huggingface_hub", "timm")


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Without what these loggers say below an error."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def default_transform(network: nn.Module) -> Callable[[Image.Image], Tensor] | None:
    """The evaluation transform of timm at the network's test size; None for networks that are not timm's."""
    if not hasattr(network, "pretrained_cfg"):
        return None
    import timm.data  # noqa: PLC0415

    config = timm.data.config.resolve_model_data_config(network, use_test_size=True)  # type: ignore[no-untyped-call]
    transform: Callable[[Image.Image], Tensor] = timm.data.transforms_factory.create_transform(
        **config, is_training=False
    )
    return transform


def normalisation_std(transform: object) -> Tensor:
    """Standard deviation of the Normalize step of a torchvision-style transform; ones where there is none."""
    for step in getattr(transform, "transforms", [transform]):
        std = getattr(step, "std", None)
        if type(step).__name__ == "Normalize" and std is not None:
            return torch.as_tensor(std, dtype=torch.float32).flatten()
    return torch.ones(1)
