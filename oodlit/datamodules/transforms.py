"""The 224-pixel protocol of ImageNet-C: a transform without its resize and crop."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from oodlit.errors import InvalidArgumentError

_SHAPING = ("Resize", "CenterCrop", "CenterCropOrPad", "ResizeKeepRatio")


def compose(transforms: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Torchvision's `Compose` with typed arguments, so that a configuration can name its steps by class_path.

    Args:
        transforms: The steps, the first one first.

    Example:
        >>> from torchvision.transforms import CenterCrop, ToTensor
        >>> compose([CenterCrop(4), ToTensor()])(Image.new("RGB", (8, 8))).shape
        torch.Size([3, 4, 4])
    """
    from torchvision.transforms import Compose  # noqa: PLC0415

    made: Callable[[Any], Any] = Compose(list(transforms))
    return made


class PreparedTransform:
    """A transform that leaves images of the network's input size as they are, pixel by pixel.

    Images of another size (the 224 pixels of ImageNet-C for a network that takes 384) go through the whole transform.

    Args:
        whole: The backbone's transform.
        rest: Its steps without resize and crop.
        size: Height and width of the network's input.
    """

    def __init__(self, whole: Callable[[Image.Image], Tensor], rest: list[Any], size: tuple[int, int]) -> None:
        self.whole, self.transforms, self.size = whole, rest, size

    def __call__(self, image: Image.Image) -> Tensor:
        """The network's input."""
        if (image.height, image.width) != self.size:
            return self.whole(image)
        value: Any = image
        for step in self.transforms:
            value = step(value)
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(f"transform: its last step gives {type(value).__name__}; a tensor is needed")
        return value

    def __repr__(self) -> str:
        """The steps, as in the original."""
        return f"{type(self).__name__}({', '.join(map(repr, self.transforms))})"


def without_resize(transform: Callable[[Image.Image], Tensor]) -> PreparedTransform:
    """A transform for images that were brought to the network's input size before (ImageNet-C).

    Resizing 224 pixels to 256 and cropping 224 blurs what the corruption made: rows of black and white stripes lose
    nearly half of their contrast.

    Args:
        transform: A composition of steps, as timm and torchvision make it, with a crop of known size.

    Raises:
        InvalidArgumentError: The steps cannot be told apart.

    Example:
        >>> from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor
        >>> prepared = without_resize(Compose([Resize(256), CenterCrop(224), ToTensor()]))
        >>> prepared.size, prepared.transforms
        ((224, 224), [ToTensor()])
    """
    steps = getattr(transform, "transforms", None)
    crops = [step for step in steps or () if type(step).__name__ in ("CenterCrop", "CenterCropOrPad")]
    if len(crops) != 1:
        raise InvalidArgumentError(
            f"transform {transform!r}: the 224-pixel protocol leaves out resize and crop, but there is no single"
            " centre crop in it; pass a composition of Resize, CenterCrop, ToTensor and Normalize"
        )
    size = crops[0].size
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    return PreparedTransform(transform, [s for s in steps or () if type(s).__name__ not in _SHAPING], (height, width))
