"""Load a network with its weights and its own transform, from a timm name or an nn.Module."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.backbones.hub import check_hub
from oodlit.base.current_folder import import_module
from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.lazy import import_object
from oodlit.base.text.singular import singular

_log = logging.getLogger(__name__)
_HUB = ("hf-hub:", "hf_hub:")
"""Prefixes of hub repositories; a file in the repository specifies the network."""
LOCAL = "local-dir:"
"""timm's prefix of a folder with the same files."""
_OTHER_WEIGHTS = "pass weights=PATH (--weights PATH) of a local file, or weights=None (--weights none) for random ones"


def load_network(
    backbone: str | nn.Module, weights: str | Path | None = "hub", *, say: Callable[[str], object] = _log.info
) -> nn.Module:
    """Load a network with its weights. A network that is passed keeps its mode; all others are in eval mode.

    Args:
        backbone: timm model name, with or without a pretrained tag, such as "resnet50.a1_in1k", or a repository
            prefixed with "hf-hub:"; or the dotted path of a class or function that creates a network, such as
            "my_package.models.MyNet"; or a network.
        weights: A local file (.safetensors, a state dict that loads with `weights_only=True`, or a Lightning
            checkpoint, whose prefix such as "model." is removed); for a name, "hub" (published weights) or None (random
            weights). A network, or that of a dotted path, keeps its own weights unless a file is given.
        say: Called with a line about changes to the names of the weights.

    Raises:
        UnknownNameError: The model does not exist; the message lists the nearest names.
        InvalidArgumentError: The weights cannot be loaded; raised within seconds without a network connection.
    """
    name = backbone if isinstance(backbone, str) else class_name(backbone)
    from_file = weights is not None and weights != "hub"
    if from_file and not Path(str(weights)).is_file():
        expected = "expected weights to be 'hub', None (--weights none) or an existing file"
        raise InvalidArgumentError(f"backbone {name!r}: {expected}, got {str(weights)!r}")
    if isinstance(backbone, str) and not _is_of_timm(name):
        backbone = build_from_path(name)
    if not isinstance(backbone, str) and not from_file:
        return usable(backbone)
    import timm  # noqa: PLC0415  # takes a second to import, which networks with weights do not require

    named = isinstance(backbone, str)
    if named and (weights == "hub" or name.startswith(_HUB)):
        _check_published(name, config_only=weights != "hub")
    try:
        with quiet_hub():
            if isinstance(backbone, str):
                backbone = timm.create_model(backbone, pretrained=weights == "hub")
        if from_file:
            load_weights(backbone, Path(str(weights)), say)
    except Exception as error:  # the hub, the file format and the shapes each raise their own types
        fits = not (from_file and isinstance(error, RuntimeError))  # else names or shapes differ
        way_out = f"; {_OTHER_WEIGHTS}" if weights == "hub" else "" if fits else "; pass the weights of this network"
        what = "" if weights is None else f": weights {str(weights)!r}"
        raise InvalidArgumentError(f"backbone {name!r}{what} cannot be loaded ({_reason(error)}){way_out}") from error
    return backbone.eval() if named else usable(backbone)


def _reason(error: Exception) -> str:
    """Why weights cannot be loaded; torch and timm advise an unsafe option that oodlit does not have."""
    if "weights_only" in str(error):
        return (
            "the file contains Python objects other than tensors, which could run code; save only the weights,"
            " with torch.save(network.state_dict(), file) or as .safetensors"
        )
    return f"{type(error).__name__}: {error}"


def load_weights(network: nn.Module, file: Path, say: Callable[[str], object] = _log.info) -> None:
    """Load a file into a network; all weights must be present.

    Checkpoints of a module around the network have names such as "model.conv.weight": the single prefix under which all
    weights exist is removed.
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
                f"the file contains the weights of the network {len(whole)} times, with the prefixes"
                f" {', '.join(map(repr, whole))}; keep only one copy"
            )
        if whole:
            left = sum(not key.startswith(whole[0]) for key in state)
            others = f"; ignored {left} names without this prefix" if left else ""
            say(singular(f"oodlit: removed the prefix {whole[0]!r} from the names of the weights in {file}{others}"))
            state = {key.removeprefix(whole[0]): v for key, v in state.items() if key.startswith(whole[0])}
    network.load_state_dict(state, strict=True)


def usable(network: nn.Module) -> nn.Module:
    """Return a network unchanged; wrap an exported program, because its mode cannot be switched."""
    try:
        with eval_mode(network):
            return network
    except NotImplementedError:
        return Exported(network)


@contextmanager
def kept_mode(network: nn.Module) -> Iterator[list[nn.Module]]:
    """Restore the mode of each module of a network after a block; yields those in training mode."""
    # Modules that are frozen by torch.jit have no mode.
    training = [module for module in network.modules() if getattr(module, "training", False)]
    try:
        yield training
    finally:
        for module in training:
            module.training = True


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Run a block with a network in eval mode, and restore the mode of each of its modules."""
    with kept_mode(network) as training:
        if training:
            network.eval()
        yield


class Exported(nn.Module):
    """Wrapper of an exported program: its mode is fixed."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program
        self.training = False

    def train(self, mode: bool = True) -> "Exported":
        """Do nothing, since the graph is fixed."""
        return self

    def forward(self, images: Tensor) -> Any:
        """Return the program's output."""
        return self.program(images)


def _is_of_timm(name: str) -> bool:
    """Return whether timm creates this network.

    Raises:
        UnknownNameError: It does not, and the name is not the dotted path of an existing module.
    """
    import timm  # noqa: PLC0415

    if name.startswith((*_HUB, LOCAL)) or timm.is_model(name):
        return True
    module = name.rpartition(".")[0]
    try:
        import_module(module)
    except ValueError:  # no name before the dot
        raise UnknownNameError.of("backbone", name, timm.list_models()) from None
    except (ImportError, SyntaxError) as error:
        # the module itself, not one of its imports
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            unknown = UnknownNameError.of("backbone", name, timm.list_models())
            fix = f"To load a class, add the folder that contains {error.name} to PYTHONPATH"
            raise UnknownNameError(f"{unknown} {fix}") from None
        raise InvalidArgumentError(f"backbone {name!r} cannot be imported: {error}") from error
    return False


def build_from_path(path: str) -> nn.Module:
    """Create the network of a class or function at a dotted path, called without arguments.

    Raises:
        InvalidArgumentError: It does not exist, requires arguments, or does not return a network.
    """
    found = import_object(path, f"backbone {path!r}")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InvalidArgumentError(f"backbone {path!r}: expected a class or function, got {type(found).__name__}")
    try:
        signature(found).bind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"backbone {path!r}: {error}; pass arguments as init_args in a configuration, or use OODModule(network)"
        ) from None
    except ValueError:  # built-in callables have no signature
        pass
    made = found()
    if not isinstance(made, nn.Module):
        raise InvalidArgumentError(f"backbone {path!r}: expected it to return an nn.Module, got {type(made).__name__}")
    return made


def _check_published(name: str, *, config_only: bool = False) -> None:
    """Raise immediately if a file of the hub is required but unavailable."""
    import timm  # noqa: PLC0415

    if name.startswith(_HUB):
        needed = ["config.json"] if config_only else ["model.safetensors", "pytorch_model.bin"]
        check_hub(name.partition(":")[2], needed, what=f"backbone {name!r}", way_out="pass an nn.Module")
        return
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id or config.file:
        return  # timm reports itself what is missing, or loads the weights from elsewhere
    old = Path(torch.hub.get_dir(), "checkpoints", str(config.url).rpartition("/")[2])
    if config.url and old.is_file():  # the cache of older timm versions, which timm can be configured to use
        return
    files = ["model.safetensors", "pytorch_model.bin"]
    if config.hf_hub_filename:
        files = [config.hf_hub_filename, f"{config.hf_hub_filename.rpartition('.')[0]}.safetensors"]
    check_hub(config.hf_hub_id, files, what=f"backbone {name!r}", way_out=_OTHER_WEIGHTS)


def timm_config(name: str) -> bytes | None:
    """Return the file on this machine that describes a network of a hub repository or of a folder; else None."""
    if name.startswith(LOCAL):
        return Path(name.partition(":")[2], "config.json").read_bytes()
    if not name.startswith(_HUB):
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    repository, _, revision = name.partition(":")[2].partition("@")
    file = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(file).read_bytes() if isinstance(file, str) else None


def unwrapped(network: nn.Module) -> nn.Module:
    """Unwrap `DataParallel` or `DistributedDataParallel`, and make parameters usable for autograd.

    The Trainer distributes the work itself; the wrapper would only change names of layers and weights. Parameters
    created under `torch.inference_mode()` would fail in detectors that compute gradients, so such a network is copied.
    """
    while isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        network = network.module
    if isinstance(network, torch.jit.ScriptModule):
        return network
    if any(tensor.is_inference() for tensor in (*network.parameters(), *network.buffers())):
        network = copy.deepcopy(network)
    return network


def class_name(network: nn.Module) -> str:
    """Return the name of the class, also for a compiled network."""
    return type(getattr(network, "_orig_mod", network)).__name__


def quiet_hub() -> AbstractContextManager[None]:
    """Suppress a log line for every attempt to reach the hub; the final error states what failed."""
    import huggingface_hub.utils  # noqa: F401, PLC0415 - sets the level of its logger once, on import

    return quiet_loggers("huggingface_hub", "timm")


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Suppress all messages of these loggers except errors."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def default_transform(network: nn.Module) -> Callable[[Image.Image], Tensor] | None:
    """Return timm's evaluation transform at the network's test size; None for other networks."""
    if not hasattr(network, "pretrained_cfg"):
        return None
    import timm.data  # noqa: PLC0415

    config = timm.data.config.resolve_model_data_config(network, use_test_size=True)  # type: ignore[no-untyped-call]
    create = timm.data.transforms_factory.create_transform
    transform: Callable[[Image.Image], Tensor] = create(**config, is_training=False)
    return transform


def normalization_std(transform: object) -> Tensor:
    """Return the standard deviation of the Normalize step of a torchvision-style transform; ones without one."""
    for step in getattr(transform, "transforms", [transform]):
        std = getattr(step, "std", None)
        if type(step).__name__ == "Normalize" and std is not None:
            return torch.as_tensor(std, dtype=torch.float32).flatten()
    return torch.ones(1)
