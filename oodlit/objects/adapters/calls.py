"""Inputs and outputs of modules of a network during one forward pass, and feature maps inside boxes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torchvision.ops import roi_align

from oodlit.backbones.capture import capture
from oodlit.backbones.layout import FEATURE_MAP
from oodlit.base.errors import InvalidArgumentError, UnknownNameError

Inside = Callable[[Tensor, Sequence[int]], dict[str, Tensor]]
"""Maps boxes and the size of the input to the activations within the boxes, by layer."""


class Call(NamedTuple):
    """One call of a module."""

    inputs: tuple[Any, ...]
    output: Any


@contextmanager
def calls_of(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Record every call of the named modules within the `with` block.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 3)
        >>> with calls_of({"mine": layer}) as calls:
        ...     _ = layer(torch.zeros(1, 2))
        >>> calls["mine"][0].output.shape
        torch.Size([1, 3])
    """
    found: dict[str, list[Call]] = {name: [] for name in modules}
    handles = []
    for name, module in modules.items():

        def keep(_m: nn.Module, args: Any, named: dict[str, Any], output: Any, name: str = name) -> None:
            found[name].append(Call((*args, *named.values()), output))

        handles.append(module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def maps_of(network: nn.Module, layers: Mapping[str, int], feature_map: str) -> Iterator[Inside]:
    """Collect the feature maps of layers during one forward pass of one image.

    The context is a function that returns the activations of each layer within each box. It expects the boxes in
    pixels of the network's input, shape (boxes, 4), and height and width of that input.

    Args:
        network: The network.
        layers: Cells per side of each layer.
        feature_map: Name of the submodule that "feature_map" refers to; empty = none.

    Raises:
        UnknownNameError: There is no such layer.
    """
    known = dict(network.named_modules())
    names = {layer: feature_map if layer == FEATURE_MAP and feature_map else layer for layer in layers}
    for name in names.values():
        if name not in known:
            raise UnknownNameError.of("layer", name, (n for n in known if n))
    with capture(network, (), tuple(dict.fromkeys(names.values()))) as kept:
        yield lambda boxes, size: {
            layer: inside_boxes(kept.get(f"output:{name}"), boxes, size, layer=layer, cells=layers[layer])
            for layer, name in names.items()
        }


def inside_boxes(
    activation: object, boxes: Float[Tensor, "boxes 4"], size: Sequence[int], *, layer: str, cells: int
) -> Float[Tensor, "boxes channels cells cells"]:
    """Interpolate a feature map within each box of one image (RoIAlign, aligned).

    Args:
        activation: A map (1, channels, y, x), or several maps, such as a pyramid, of which the finest is used.
        boxes: In pixels of the network's input.
        size: Height and width of the network's input.
        layer: Name of the layer, for errors.
        cells: Number of cells per side.

    Raises:
        InvalidArgumentError: The layer has no map.

    Example:
        >>> import torch
        >>> ramp = torch.arange(8.0).expand(1, 1, 8, 8)
        >>> inside_boxes(ramp, torch.tensor([[0.0, 0, 16, 16]]), (16, 16), layer="conv", cells=2)[0, 0, 0]
        tensor([1.5000, 5.5000])

    References:
        He, Gkioxari, Dollar and Girshick: Mask R-CNN, ICCV 2017 (RoIAlign).
    """
    maps = [m for m in _tensors(activation) if m.ndim == 4 and len(m) == 1]
    if not maps:
        found = ", ".join(str(tuple(t.shape)) for t in _tensors(activation)) or f"a {type(activation).__name__}"
        raise InvalidArgumentError(
            f"layer {layer!r}: expected a feature map of shape (1, channels, y, x), got {found}; choose another layer"
        )
    finest = max(maps, key=lambda m: m.shape[2] * m.shape[3]).float()
    scale = boxes.new_tensor([finest.shape[3] / size[1], finest.shape[2] / size[0]]).repeat(2)
    cut: Tensor = roi_align(finest, [(boxes * scale).float()], (cells, cells), aligned=True)
    return cut


def _tensors(activation: object) -> list[Tensor]:
    if isinstance(activation, Tensor):
        return [activation]
    if isinstance(activation, Mapping):
        activation = list(activation.values())
    if isinstance(activation, tuple | list):
        return [tensor for part in activation for tensor in _tensors(part)]
    return []
