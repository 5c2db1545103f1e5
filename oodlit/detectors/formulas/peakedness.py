"""How peaked the features of an image are, shared by LTS and AdaSCALE."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.outputs import Features, Head, Logits, Scores


def sum_ratio(features: Features, kept: int | Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Return the sum of max(x, 0) over the sum of its `kept` largest entries, float64; 1 without positive features.

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
    """Return the mean bias over unmasked classes, float64: a constant that does not affect the softmax."""
    bias = head.offset.double()
    unmasked = bias[bias > -float("inf")]
    return unmasked.mean() if len(unmasked) else bias.new_zeros(())


def scaled_energy(logits: Logits, ratio: Float[Tensor, " batch"], constant: Float[Tensor, ""]) -> Scores:
    """Return the log-sum-exp with scaled differences to c, c + LSE(r^2 (z - c)), float64."""
    return constant + (ratio.square()[:, None] * (logits.double() - constant)).logsumexp(dim=1)
