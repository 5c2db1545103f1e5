"""Gradients of network outputs with respect to the input, and the ranking of their entries."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.outputs import Model

LEVELS = 2.0**20
"""Steps between 0 and the largest gradient of an image. Gradients that differ only by rounding are on the same step."""


def input_gradient(
    model: Model,
    images: Float[Tensor, "batch channels height width"],
    slope: Callable[[Float[Tensor, "batch classes"]], Float[Tensor, "batch classes"]],
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch channels height width"]]:
    """Return the logits, and the input gradient of a function of them, in one forward and one backward pass.

    The gradient of each image is multiplied by a positive number to avoid underflow.

    Args:
        model: The network.
        images: Transformed images.
        slope: Gradient of the function with respect to the logits, which it receives in float64.
    """
    # Tensors created in inference mode cannot carry gradients: leave the mode and copy.
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
    """Return the gradient of the largest logit.

    Example:
        >>> towards_prediction(torch.tensor([[1.0, 3.0]]))
        tensor([[0., 1.]])
    """
    return torch.zeros_like(logits).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)


def gradient_levels(gradient: Float[Tensor, "..."]) -> Float[Tensor, "batch entries"]:
    """Return the sizes of the entries in steps of 2^-20 of the largest, as whole numbers; zero for a zero gradient.

    This makes the order of entries that differ only by rounding independent of the batch.

    Example:
        >>> gradient_levels(torch.tensor([[-4.0, 1.0, 1.0 + 1e-7, 0.0]]) * 2**-20).tolist()
        [[1048576.0, 262144.0, 262144.0, 0.0]]
    """
    sizes = gradient.flatten(1).abs().to(torch.promote_types(gradient.dtype, torch.float32))
    largest = sizes.amax(dim=1, keepdim=True)
    return (sizes / largest.where(largest > 0, torch.ones_like(largest)) * LEVELS).round()
