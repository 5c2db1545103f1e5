"""Find the channel axis of hidden activations and move it to the front."""

import itertools
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError

FEATURE_MAP = "feature_map"
"""Key of `Outputs.hidden` for the last block's map of a timm network."""

_FIRST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FIRST_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.SyncBatchNorm)
_pooling = nn.modules.pooling
_POOLS = (_pooling._MaxPoolNd, _pooling._AvgPoolNd, _pooling._AdaptiveAvgPoolNd, _pooling._AdaptiveMaxPoolNd)
_KEEPS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Dropout, nn.Hardswish, nn.ELU)
"""Layers that change values but not axes."""


def channels_first(activation: object, layer: str, axis: int) -> Tensor:
    """Return a hidden activation as (batch, channels, ...), given the axis of its channels.

    Raises:
        InvalidArgumentError: It is not a tensor with an axis for images and one for channels.

    Example:
        >>> import torch
        >>> channels_first(torch.zeros(2, 7, 9, 768), "stage", -1).shape
        torch.Size([2, 768, 7, 9])
    """
    if not isinstance(activation, Tensor) or activation.ndim < 2:
        kind = tuple(activation.shape) if isinstance(activation, Tensor) else type(activation).__name__
        raise InvalidArgumentError(
            f"layer {layer!r}: expected its output to be a tensor (batch, channels, ...) or (batch, ..., channels), got"
            f" {kind}; pass the name of a layer inside {layer!r}"
        )
    return activation.movedim(axis, 1)


def channel_axis(network: nn.Module, layer: str, activation: object, asked: Mapping[str, int]) -> int:
    """Return the axis of an activation that contains its channels: 1 or -1.

    The axis given by the user comes first; then the kind of the layer (convolutions put channels first, linear layers
    last); then the axis whose size is the number of channels according to the weights inside or before the layer.

    Args:
        network: The network.
        layer: Name of a submodule, or "feature_map".
        activation: Output of the layer.
        asked: Axes by layer name, as given by the user.

    Raises:
        InvalidArgumentError: Both axes are possible, or neither.
    """
    if not isinstance(activation, Tensor) or activation.ndim < 3:
        return 1
    if (axis := asked.get(layer)) is not None:
        if axis == 0 or not -activation.ndim < axis < activation.ndim:
            raise InvalidArgumentError(
                f"channel_axis={dict(asked)!r}: the output of layer {layer!r} has shape {tuple(activation.shape)}, so"
                f" its channels cannot be on axis {axis}"
            )
        return axis
    module = network if layer == FEATURE_MAP else network.get_submodule(layer)
    known = _known_axis(network, layer, module)
    fits = _fitting_axes(network, layer, module, activation) if known is None else [known]
    if len(fits) == 1 and layer != FEATURE_MAP and _is_doubtful(network, layer, module, activation, fits[0]):
        fits = [1, -1]
    if len(fits) != 1:
        why = "its channels may be on axis 1 or on the last axis" if fits else "oodlit cannot find its channels"
        raise InvalidArgumentError(
            f"the output of layer {layer!r} has shape {tuple(activation.shape)}, and {why}; pass the axis of its"
            f" channels: OODModule(..., channel_axis={{{layer!r}: 1}}), or -1 for the last axis"
        )
    return fits[0]


def _is_doubtful(network: nn.Module, layer: str, module: nn.Module, activation: Tensor, axis: int) -> bool:
    """Return whether sizes contradict an axis, for example because the preceding layer has the width of the other axis.

    A linear layer over positions, as in a mixer, returns (batch, channels, positions): its own width is the last axis.
    """
    size, other = activation.shape[axis], activation.shape[-axis]
    if axis == 1:
        widths = next((known for known in _widths(network, layer, module) if known), set())
    else:
        widths = {_num_outputs(m) for m in network.modules() if isinstance(m, (*_FIRST, *_FIRST_NORMS, nn.LayerNorm))}
    return size not in widths and other in widths


def _fitting_axes(network: nn.Module, layer: str, module: nn.Module, activation: Tensor) -> list[int]:
    """Return axes that may contain the channels, by their size and by the layers of the block."""
    widths = list(_widths(network, layer, module))
    fits = next((f for known in widths if (f := [a for a in (1, -1) if activation.shape[a] in known])), [])
    usual = None if layer == FEATURE_MAP else _usual_axis(module)
    # Blocks that concatenate have more channels than any of their layers, so another axis may match instead.
    return fits if usual is None or usual in fits else [usual, *fits]


def _usual_axis(module: nn.Module) -> int | None:
    """Return the usual channel axis of a block with a single kind of layers; None for other blocks."""
    kinds = {_axis_of_layer(m) for m in module.modules() if any(True for _ in m.parameters(recurse=False))}
    return kinds.pop() if len(kinds) == 1 else None


def _axis_of_layer(module: nn.Module) -> int | None:
    if isinstance(module, (*_FIRST, *_FIRST_NORMS, *_POOLS)):
        return 1
    return -1 if type(module) is nn.LayerNorm or isinstance(module, nn.Linear) else None


def _known_axis(network: nn.Module, layer: str, module: nn.Module) -> int | None:
    """Return the axis by the kind of the layer; None if that does not determine it."""
    if layer == FEATURE_MAP:
        formats = {"NCHW": 1, "NHWC": -1, "NLC": -1, "NCL": 1}
        return formats.get(str(getattr(network, "output_fmt", "")).rpartition(".")[2])
    if isinstance(module, nn.Sequential):
        inner = [m for m in module if not isinstance(m, _KEEPS)]
        return _known_axis(network, layer, inner[-1]) if inner else None
    if isinstance(module, _KEEPS):
        before = _leaves_until(network, layer)
        return _axis_of_layer(before[-1]) if before else None
    return _axis_of_layer(module)


def _leaves_until(network: nn.Module, layer: str) -> list[nn.Module]:
    """Return the last layer with weights registered before `layer`, as a list of one; empty if there is none."""
    before = itertools.takewhile(lambda named: named[0] != layer, network.named_modules())
    return [module for _, module in before if any(True for _ in module.parameters(recurse=False))][-1:]


def _widths(network: nn.Module, layer: str, module: nn.Module) -> Iterator[set[int | None]]:
    """Yield numbers of channels, most reliable first: from the network, then from the last layer with weights."""
    if layer == FEATURE_MAP:
        yield {getattr(network, "num_features", None)}
        return
    info = getattr(network, "feature_info", None)
    if isinstance(info, list):
        yield {entry.get("num_chs") for entry in info if isinstance(entry, Mapping) and entry.get("module") == layer}
    inside = [m for m in module.modules() if _num_outputs(m) is not None] or _leaves_until(network, layer)
    yield {_num_outputs(m) for m in inside[-1:]}


def _num_outputs(module: nn.Module) -> int | None:
    for name in ("out_channels", "out_features", "num_features", "num_channels"):
        if isinstance(value := getattr(module, name, None), int):
            return value
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if isinstance(shape, tuple | list) and shape else None
