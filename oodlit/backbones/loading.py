"""From a timm name or an nn.Module to a network with its weights, and its own transform."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.backbones.hub import check_hub
from oodlit.errors import InvalidArgumentError, UnknownNameError

__all__ = ["class_name", "default_transform", "load_network", "normalisation_std", "quiet_hub", "unwrapped"]

_OTHER_WEIGHTS = "give weights=PATH of a local checkpoint, or weights=None (--weights none) for random weights"


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
