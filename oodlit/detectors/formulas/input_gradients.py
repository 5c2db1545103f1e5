"""Gradients of what a network says with respect to its input, and which entries of them are small or large."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.outputs import Model

LEVELS = 2.0**20
"""Steps between 0 and the largest gradient of an image. Gradients that are equal but for rounding are on one step."""


def input_gradient(
    model: Model,
    images: Float[Tensor, "batch channels height width"],
    slope: Callable[[Float[Tensor, "batch classes"]], Float[Tensor, "batch classes"]],
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch channels height width"]]:
    """Logits, and the gradient of a function of the logits of every image; a pass forward and one backward.

    The gradient of an image is multiplied by a positive number, so that nothing underflows.

    Args:
        model: The network.
        images: Transformed images.
        slope: The gradient of the function with respect to the logits, which are given in float64.
    """
    # Tensors made in inference mode cannot carry gradients: leave the mode, and copy.
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = images.clone().requires_grad_()
        logits = model.logits(x)
        with torch.no_grad():
            along = slope(logits.double())
            size = along.abs().amax(dim=1, keepdim=True)
            along = along / size.where(size > 0, torch.ones_like(size))
        (gradient,) = torch.autograd.grad(logits, x, along.to(logits.dtype))
    return logits.detach(), gradient


def towards_prediction(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Slope of the largest logit.

    Example:
        >>> towards_prediction(torch.tensor([[1.0, 3.0]]))
        tensor([[0., 1.]])
    """
    return torch.zeros_like(logits).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)


def gradient_levels(gradient: Float[Tensor, "..."]) -> Float[Tensor, "batch entries"]:
    """Sizes of the entries in steps of 2^-20 of the largest one, whole numbers; all zero where the gradient is.

    Which of two entries is larger then does not depend on the batch where they differ by rounding alone.

    Example:
        >>> gradient_levels(torch.tensor([[-4.0, 1.0, 1.0 + 1e-7, 0.0]]) * 2**-20).tolist()
        [[1048576.0, 262144.0, 262144.0, 0.0]]
    """
    sizes = gradient.flatten(1).abs().to(torch.promote_types(gradient.dtype, torch.float32))
    largest = sizes.amax(dim=1, keepdim=True)
    return (sizes / largest.where(largest > 0, torch.ones_like(largest)) * LEVELS).round()
