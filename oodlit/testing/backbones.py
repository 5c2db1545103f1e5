"""A tiny network with fixed arithmetic weights: no random numbers, the same on every machine."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

_PATCH = 4
_PIXELS = 3 * _PATCH * _PATCH


def arithmetic(*shape: int, salt: int = 0) -> Tensor:
    """Pseudo-random float64 numbers in [0, 1) from integer arithmetic.

    Args:
        shape: Shape of the result.
        salt: Seed of the numbers.

    Example:
        >>> bool((arithmetic(3, salt=1) == arithmetic(3, salt=1)).all()), bool((arithmetic(9) < 1).all())
        (True, True)
    """
    mixed = torch.arange(int(torch.Size(shape).numel()), dtype=torch.int64) + 7919 * salt + 1
    for multiplier in (1_103_515_245, 747_796_405, 277_803_737):  # keeping 31 bits keeps products below 2**63
        mixed = (mixed * multiplier + 12_345) % 2**31
        mixed = mixed ^ (mixed >> 15)
    return (mixed.double() / 2**31).reshape(shape)


@torch.no_grad()
def fill_arithmetic_(module: nn.Module) -> nn.Module:
    """Fill all parameters with `arithmetic` numbers in [-0.5, 0.5); returns the module in eval mode.

    Example:
        >>> fill_arithmetic_(torch.nn.Linear(2, 2)).training
        False
    """
    for i, parameter in enumerate(module.parameters()):
        parameter.copy_((arithmetic(*parameter.shape, salt=i + 1) - 0.5).to(parameter.dtype))
    return module.eval()


class TinyConvNet(nn.Module):
    """Convolution, ReLU, mean over the map, dropout, linear head: a residual network in miniature.

    Feature d is the mean of pixels 3d, 3d + 1 and 3d + 2 of each of the 2 x 2 patches. Class c uses the features 2c and
    2c + 1; the rest of the 16 features lowers every logit slightly.

    Args:
        num_classes: 2 to 8.
        dropout: Probability before the head; 0 = no dropout layer.
        signed: If True, there is no ReLU, so that features can be negative, as in vision transformers.
        bias: Whether the head has a bias.
        head_name: Attribute name of the head.

    Example:
        >>> TinyConvNet()(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 6])
    """

    num_features = _PIXELS // 3

    def __init__(
        self,
        num_classes: int = 6,
        *,
        dropout: float = 0.0,
        signed: bool = False,
        bias: bool = True,
        head_name: str = "head",
    ) -> None:
        super().__init__()
        self.head_name = head_name
        with torch.random.fork_rng(devices=[]):  # torch draws initial weights, which are replaced below
            self.conv = nn.Conv2d(3, self.num_features, _PATCH, stride=_PATCH, bias=False)
            self.act: nn.Module = nn.Identity() if signed else nn.ReLU()
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.drop: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
            setattr(self, head_name, nn.Linear(self.num_features, num_classes, bias=bias))
        with torch.no_grad():
            kernels = torch.eye(self.num_features).repeat_interleave(3, dim=1) / 3  # of the pixels 3d, 3d + 1, 3d + 2
            self.conv.weight.copy_(kernels.reshape_as(self.conv.weight))
            linear = self.get_submodule(head_name)
            assert isinstance(linear, nn.Linear)
            linear.weight.copy_(_class_weights(num_classes, self.num_features))
            if linear.bias is not None:
                linear.bias.copy_(0.9 + 0.2 * arithmetic(num_classes, salt=3))
        self.eval()

    def feature_map(self, images: Float[Tensor, "batch 3 8 8"]) -> Float[Tensor, "batch features 2 2"]:
        """Feature map of the last block."""
        maps: Tensor = self.act(self.conv(images))
        return maps

    def logits_from_map(self, maps: Float[Tensor, "batch features 2 2"]) -> Float[Tensor, "batch classes"]:
        """Logits of a feature map."""
        logits: Tensor = self.get_submodule(self.head_name)(self.drop(self.pool(maps)))
        return logits

    def forward(self, images: Float[Tensor, "batch 3 8 8"]) -> Float[Tensor, "batch classes"]:
        """Logits."""
        return self.logits_from_map(self.feature_map(images))


def _class_weights(num_classes: int, num_features: int) -> Tensor:
    """Class c uses features 2c and 2c + 1; other weights are small, and negative for unused features."""
    weight = 0.1 * (arithmetic(num_classes, num_features, salt=2) - 0.5)
    weight[:, 2 * num_classes :] = -0.05 - 0.1 * arithmetic(num_classes, num_features - 2 * num_classes, salt=4)
    for c in range(num_classes):
        weight[c, 2 * c : 2 * c + 2] = 1.0
    return weight.float()
