"""From a timm name or an nn.Module to a network whose features and linear head are known.

The features are the input of the final linear layer, so that head(features) == logits holds by construction.
"""

import copy
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.hub import check_hub
from oodlit.outputs import Head

__all__ = [
    "capture",
    "class_name",
    "default_transform",
    "describe",
    "find_head_layers",
    "fingerprint",
    "join_heads",
    "load_network",
    "normalisation_std",
    "quiet_hub",
    "to_vectors",
    "unwrapped",
]

_OTHER_WEIGHTS = "give weights=PATH of a local checkpoint, or weights=None (--weights none) for random weights"
MAX_CANDIDATES = 8
"""Linear layers of a plain module that are tried as its head, from the last one on."""


def load_network(backbone: str | nn.Module, weights: str | Path | None = "hub") -> nn.Module:
    """A network in eval mode, with its weights.

    Args:
        backbone: timm model name, with or without pretrained tag, such as "resnet50.a1_in1k"; or a network.
        weights: A local file (.safetensors, or a state dict that loads with `weights_only=True`); "hub" (timm's
            published weights) or None (random weights) for a name. A network keeps its own unless a file is given.

    Raises:
        UnknownNameError: timm knows no such model; names the nearest.
        InvalidArgumentError: The weights cannot be loaded; within seconds where there is no network to fetch them.
    """
    named = isinstance(backbone, str)
    name = backbone if isinstance(backbone, str) else class_name(backbone)
    from_file = weights is not None and weights != "hub"
    if from_file and not Path(str(weights)).is_file():
        raise InvalidArgumentError(f"backbone {name!r}: weights file {str(weights)!r} does not exist")
    if not isinstance(backbone, str) and not from_file:
        return backbone.eval()
    import timm  # noqa: PLC0415  # a second of import that nobody pays who brings a network with its weights

    if named and not timm.is_model(name):
        raise UnknownNameError.of("backbone", name, timm.list_models())
    if named and weights == "hub":
        _check_published(name)
    try:
        with quiet_hub():
            network = (
                timm.create_model(backbone, pretrained=weights == "hub") if isinstance(backbone, str) else backbone
            )
        if from_file:
            timm.models.load_checkpoint(network, str(weights), strict=True, weights_only=True)
    except Exception as error:  # the hub, the file format and the shapes each fail with a type of their own
        way_out = f"; {_OTHER_WEIGHTS}" if named else ""
        raise InvalidArgumentError(
            f"backbone {name!r}: weights {str(weights)!r} cannot be loaded ({type(error).__name__}: {error}){way_out}"
        ) from error
    return network.eval()


def _check_published(name: str) -> None:
    """Refuse at once where weights of the hub are needed and cannot be had."""
    import timm  # noqa: PLC0415

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
    if any(tensor.is_inference() for tensor in (*network.parameters(), *network.buffers())):
        network = copy.deepcopy(network)
    return network


def class_name(network: nn.Module) -> str:
    """Name of the class, also of a compiled network."""
    return type(getattr(network, "_orig_mod", network)).__name__


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Without a line for every attempt to reach the hub; the error that ends them says what failed."""
    import huggingface_hub.utils  # noqa: F401, PLC0415 - sets the level of its logger once, when it is imported

    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "timm")]
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


def find_head_layers(network: nn.Module, head: str | None) -> tuple[tuple[str, ...], ...]:
    """Names of the final linear layers, most likely first: one layer, or several whose logits are averaged.

    Args:
        network: The classifier.
        head: Name of the final layer, or None to ask the network: timm's `get_classifier`, else the last
            linear layer that gives the logits.

    Returns:
        Candidates; which of them is right shows in the first forward pass.

    Raises:
        InvalidArgumentError: There is no such layer, it is not linear, or no linear layer at all.
    """
    names = {id(module): name for name, module in network.named_modules()}
    if head is None:
        candidates = _classifier_candidates(network)
        if not candidates:
            raise InvalidArgumentError(
                f"{type(network).__name__}: no final linear layer was found; name it: head='...'."
                f" Layers: {', '.join(n for n, _ in list(network.named_modules())[-8:] if n) or 'none'}"
            )
    else:
        try:
            chosen = network.get_submodule(head)
        except AttributeError:
            linear = [n for n, m in network.named_modules() if _is_linear(m)]
            near = UnknownNameError.of("layer", head, linear[-12:])
            raise InvalidArgumentError(f"head={head!r}: the network has no such layer - {near}") from None
        candidates = _candidates(chosen)
        if not candidates:
            raise InvalidArgumentError(
                f"head={head!r} is a {type(chosen).__name__}; a Linear or 1x1 Conv2d layer is needed"
            )
    return tuple(tuple(names[id(layer)] for layer in candidate) for candidate in candidates)


def join_heads(layers: list[nn.Module]) -> Head:
    """One head for the mean of several linear layers on concatenated features: [W1 W2] / n, mean of the biases."""
    weights, biases = [], []
    for layer in layers:
        weight = layer.weight
        assert isinstance(weight, Tensor)  # Linear or Conv2d
        weights.append(weight.detach().flatten(1).float())
        bias = layer.bias
        biases.append(bias.detach().float() if isinstance(bias, Tensor) else weights[-1].new_zeros(len(weight)))
    count = len(layers)
    return Head(torch.cat(weights, dim=1) / count, torch.stack(biases).sum(dim=0) / count)


def to_vectors(activation: Tensor, width: int) -> Tensor:
    """Input of a linear layer as (batch, width): 1x1 maps are flattened, maps and tokens averaged over positions.

    A linear layer and a mean over positions commute, so the averaged input belongs to the averaged output.
    """
    if activation.ndim == 4 and activation.shape[1] == width:
        return activation.mean(dim=(2, 3)) if activation[0, 0].numel() > 1 else activation.flatten(1)
    if activation.ndim > 2 and activation.shape[-1] == width:
        return activation.flatten(1, -2).mean(dim=1)
    if activation.ndim == 2 and activation.shape[1] == width:
        return activation
    raise RequirementError(
        f"the final layer takes inputs of shape {tuple(activation.shape)}; one vector of {width} per image is needed"
    )


@contextmanager
def capture(network: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Collect, during one forward pass, the inputs and outputs of layers by name; the network is left as it was."""
    kept: dict[str, Tensor] = {}
    handles = []
    # A compiled network would freeze the first hook into its graph: the graph is broken where a hook is called.
    is_compiled = any(getattr(network, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl"))
    guard: Callable[[Any], Any] = torch.compiler.disable if is_compiled else _as_it_is
    for name in inputs:

        def keep_input(_m: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], name: str = name) -> None:
            kept[name] = args[0] if args else next(iter(named.values()))

        handles.append(network.get_submodule(name).register_forward_pre_hook(guard(keep_input), with_kwargs=True))
    for name in outputs:

        def keep_output(_module: nn.Module, _args: object, output: Tensor, name: str = name) -> None:
            kept[f"output:{name}"] = output

        handles.append(network.get_submodule(name).register_forward_hook(guard(keep_output)))
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _as_it_is(hook: Any) -> Any:
    return hook


def fingerprint(network: nn.Module, transform: object) -> str:
    """Hash of all weights, buffers and the transform: fitted detectors belong to exactly this backbone."""
    digest = hashlib.blake2b(digest_size=16)
    # The name that `torch.compile` puts around a network says nothing about its weights.
    state = {name.replace("_orig_mod.", ""): value for name, value in network.state_dict().items()}
    for name, value in sorted(state.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        data = value.detach().cpu().contiguous().flatten()
        digest.update(data.view(torch.uint8).numpy() if data.numel() else b"")
    digest.update(describe(transform).encode())
    return digest.hexdigest()


def describe(transform: object) -> str:
    """A transform as text that stays the same from run to run."""
    # The address in the default repr of objects and functions changes from run to run; the name does not.
    text = repr(transform)
    if " at 0x" in text:
        return f"{getattr(transform, '__module__', '')}.{getattr(transform, '__qualname__', type(transform).__name__)}"
    return text


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return True
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1


def _candidates(*parts: nn.Module) -> list[list[nn.Module]]:
    """Sets of layers that may be the head: the last linear layer of each part; all layers as wide as the last one."""
    parts = tuple(child for part in parts for child in (part if isinstance(part, nn.ModuleList) else [part]))
    inner = [[m for m in part.modules() if _is_linear(m)] for part in parts]
    last = [layers[-1] for layers in inner if layers]
    if not last:
        return []
    every = [m for layers in inner for m in layers if len(m.weight) == len(last[-1].weight)]  # type: ignore[arg-type]  # tensors
    return [last] if len(every) == len(last) else [last, every]


def _classifier_candidates(network: nn.Module) -> list[list[nn.Module]]:
    get_classifier = getattr(network, "get_classifier", None)
    if callable(get_classifier):
        classifier = get_classifier()
        parts = classifier if isinstance(classifier, tuple | list) else [classifier]
        return _candidates(*(part for part in parts if isinstance(part, nn.Module)))
    linear: list[nn.Module] = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return [[layer] for layer in linear[: -1 - MAX_CANDIDATES : -1]]
