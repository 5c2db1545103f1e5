"""How peaked the features of an image are, and logits that are multiplied by it; what LTS and AdaSCALE share."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.outputs import Head


def sum_ratio(features: Float[Tensor, "batch features"], kept: int | Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Sum of max(x, 0) over the sum of its `kept` largest entries, float64; 1 where no feature is positive.

    Example:
        >>> sum_ratio(torch.tensor([[3.0, 1.0, -2.0], [0.0, -1.0, 0.0]]), 1).tolist()
        [1.3333..., 1.0]
    """
    positive = features.clamp(min=0)
    total = positive.sum(dim=1, dtype=torch.float64)
    if isinstance(kept, int):
        largest = positive.topk(kept, dim=1, sorted=False).values.sum(dim=1, dtype=torch.float64)
    else:
        ranks = torch.arange(positive.shape[1], device=features.device)
        ordered = positive.sort(dim=1, descending=True).values
        largest = (ordered * (ranks < kept[:, None])).sum(dim=1, dtype=torch.float64)
    ratio: Tensor = (total / largest).where(largest > 0, torch.ones_like(total))
    return ratio


def mean_bias(head: Head) -> Float[Tensor, ""]:
    """The mean of the bias over the classes that are not masked, float64: a constant that no softmax sees."""
    bias = head.offset.double()
    unmasked = bias[bias > -float("inf")]
    return unmasked.mean() if len(unmasked) else bias.new_zeros(())


def scaled_energy(
    logits: Float[Tensor, "batch classes"], ratio: Float[Tensor, " batch"], constant: Float[Tensor, ""]
) -> Float[Tensor, " batch"]:
    """Log-sum-exp of z with the differences to c multiplied, c + LSE(r^2 (z - c)); float64."""
    return constant + (ratio.square()[:, None] * (logits.double() - constant)).logsumexp(dim=1)
