"""Activations of a layer within boxes: RoIAlign on its feature map."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor
from torchvision.ops import roi_align

from oodlit.base.errors import InvalidArgumentError


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
            f"layer {layer!r}: expected a feature map of shape (image, channels, y, x), got {found}"
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
