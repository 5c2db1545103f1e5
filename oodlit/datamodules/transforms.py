"""Transforms for images that already have the network's input size (ImageNet-C)."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError

_SHAPING = ("Resize", "CenterCrop", "CenterCropOrPad", "ResizeKeepRatio")


def compose(transforms: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Torchvision's `Compose` with typed arguments, so that configurations can list its steps by class_path.

    Args:
        transforms: The steps, in order.

    Example:
        >>> from torchvision.transforms import CenterCrop, ToTensor
        >>> compose([CenterCrop(4), ToTensor()])(Image.new("RGB", (8, 8))).shape
        torch.Size([3, 4, 4])
    """
    from torchvision.transforms import Compose  # noqa: PLC0415

    made: Callable[[Any], Any] = Compose(list(transforms))
    return made


class PreparedTransform:
    """A transform that does not resize or crop images of the network's input size.

    Images of other sizes, such as ImageNet-C's 224 pixels for a network with 384, go through the whole transform.

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
            raise InvalidArgumentError(f"transform: the last step must return a tensor, got {type(value).__name__}")
        return value

    def __repr__(self) -> str:
        """The remaining steps."""
        return f"{type(self).__name__}({', '.join(map(repr, self.transforms))})"


def without_resize(transform: Callable[[Image.Image], Tensor]) -> PreparedTransform:
    """Remove resize and crop from a transform, for images that already have the network's input size (ImageNet-C).

    Resizing from 224 to 256 pixels and cropping to 224 blurs the corruptions: black and white stripes of one pixel lose
    almost half of their contrast.

    Args:
        transform: A composition of steps as timm and torchvision build it, with a center crop.

    Raises:
        InvalidArgumentError: There is not exactly one center crop.

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
            f"transform {transform!r}: expected exactly one center crop (it is skipped for ImageNet-C, whose images are"
            " already cropped); pass a composition of Resize, CenterCrop, ToTensor and Normalize"
        )
    size = crops[0].size
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    return PreparedTransform(transform, [s for s in steps or () if type(s).__name__ not in _SHAPING], (height, width))
