"""Logits of copies of the head whose weights are perturbed, block by block."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import is_traced
from oodlit.errors import RequirementError

AT_A_TIME = 2**24
"""Weights and logits formed at a time (128 MiB in float64)."""
IN_CACHE = 2**18
"""The same on a CPU: 2 MiB stay in its cache while they are counted, which takes half the time."""
TRACED_IMAGES = 64
"""Images that an exported program is made for; more of them take more memory."""


class PerturbedHead:
    """Copies of a head with weights w + strength |w| n / |n|, n normal for every copy and class, and the same bias.

    n of copy i is drawn from a generator of its own on the CPU: the same for every size of batch and on every device.

    Args:
        weight: Of the head, (classes, features), float64.
        copies: How many.
        strength: Length of a perturbation, relative to that of the weights of its class.
        seed: Of the perturbations.
        most_bytes: The weights of all copies are kept where they take no more; else they are drawn for every batch.
    """

    def __init__(
        self, weight: Float[Tensor, "classes features"], *, copies: int, strength: float, seed: int, most_bytes: int
    ) -> None:
        self.weight, self.copies, self.strength, self.seed = weight, copies, strength, seed
        self._kept = self._drawn(0, copies) if size_of(weight.numel(), copies) <= most_bytes else None

    def logits(
        self, features: Float[Tensor, "batch features"], bias: Float[Tensor, " classes"]
    ) -> Iterator[Float[Tensor, "batch copies classes"]]:
        """Logits of all copies, some copies at a time.

        Raises:
            RequirementError: The weights are drawn for every batch, and this is traced.
        """
        classes, width = self.weight.shape
        number = features.shape[0]
        if is_traced():
            if self._kept is None:
                raise RequirementError("the perturbed weights are too large to be kept; use fewer copies")
            at_a_time = AT_A_TIME // (classes * TRACED_IMAGES)
        elif self._kept is None:
            at_a_time = AT_A_TIME // (classes * max(width, number))
        else:
            budget = IN_CACHE if features.device.type == "cpu" else AT_A_TIME
            at_a_time = budget // (classes * max(1, number))
        at_a_time = max(1, at_a_time)
        for start in range(0, self.copies, at_a_time):
            stop = min(self.copies, start + at_a_time)
            block = self._drawn(start, stop) if self._kept is None else self._kept[start:stop]
            yield (features @ block.flatten(0, 1).T).view(number, stop - start, classes).add_(bias)

    def _drawn(self, start: int, stop: int) -> Float[Tensor, "copies classes features"]:
        weights = self.weight.new_empty(stop - start, *self.weight.shape)
        scales = self.strength * torch.linalg.vector_norm(self.weight, dim=1, keepdim=True)
        noise = torch.empty(self.weight.shape, dtype=torch.float64)  # written over: many in turn may stay in memory
        for place, copy in enumerate(range(start, stop)):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + copy)
            drawn = torch.randn(noise.shape, generator=generator, dtype=torch.float64, out=noise).to(weights.device)
            lengths = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
            torch.mul(scales, drawn, out=weights[place]).div_(lengths).add_(self.weight)
        return weights


def size_of(num_weights: int, copies: int) -> int:
    """Bytes of the weights of all copies in float64."""
    return 8 * num_weights * copies
