"""Logits of copies of the head whose weights are perturbed, block by block."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

BUDGET = 2**24
"""Weights and logits held at a time (128 MiB in float64)."""


def perturbed_logits(
    features: Float[Tensor, "batch features"],
    weight: Float[Tensor, "classes features"],
    bias: Float[Tensor, " classes"],
    *,
    copies: int,
    strength: float,
    seed: int,
) -> Iterator[Float[Tensor, "batch copies classes"]]:
    """Logits of all copies, some copies at a time: weights w + strength |w| n / |n| and the same bias.

    n of copy i is drawn from a generator of its own on the CPU: the same for every size of batch and on every device.
    """
    classes, width = weight.shape
    norms = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    at_a_time = max(1, BUDGET // (classes * max(width, len(features), 1)))
    for start in range(0, copies, at_a_time):
        block = []
        for copy in range(start, min(copies, start + at_a_time)):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + copy)
            noise = torch.randn(classes, width, generator=generator, dtype=torch.float64).to(weight.device)
            block.append(weight + strength * norms * noise / torch.linalg.vector_norm(noise, dim=1, keepdim=True))
        logits = features @ torch.cat(block).T
        yield logits.view(len(features), len(block), classes) + bias
