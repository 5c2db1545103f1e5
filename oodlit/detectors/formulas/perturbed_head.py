"""Logits of copies of the head with perturbed weights, in blocks, or drawn directly."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import is_traced
from oodlit.base.errors import RequirementError
from oodlit.base.outputs import Features, Logits

AT_A_TIME = 2**24
"""Weights and logits computed at a time (128 MiB in float64)."""
IN_CACHE = 2**18
"""Weights and logits computed at a time on a CPU: 2 MiB fit in its cache, which halves the time."""
TRACED_IMAGES = 64
"""Number of images that an exported program is optimized for; more images take more memory."""


class PerturbedHead:
    """Copies of a head with weights w + strength |w| n / |n|, n normal for every copy and class, and the same bias.

    Copy i is drawn from its own generator on the CPU, so it is the same for every batch size and device.

    Args:
        weight: Weight of the head, (classes, features), float64.
        copies: Number of copies.
        strength: Length of a perturbation relative to the weights of its class.
        seed: Seed of the perturbations.
        most_bytes: Maximum size for keeping the weights of all copies; above it they are drawn for every batch.
    """

    def __init__(
        self, weight: Float[Tensor, "classes features"], *, copies: int, strength: float, seed: int, most_bytes: int
    ) -> None:
        self.weight, self.copies, self.strength, self.seed = weight, copies, strength, seed
        self._kept = self._drawn(0, copies) if size_of(weight.numel(), copies) <= most_bytes else None

    def logits(
        self, features: Features, bias: Float[Tensor, " classes"]
    ) -> Iterator[Float[Tensor, "batch copies classes"]]:
        """Return the logits of all copies, some copies at a time.

        Raises:
            RequirementError: The weights are drawn for every batch, which cannot be traced.
        """
        classes, width = self.weight.shape
        number = features.shape[0]
        if is_traced():
            if self._kept is None:
                raise RequirementError(
                    "WeiPer: the perturbed weights are too large to export; reduce copies, or use perturb='logits'"
                )
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
        noise = torch.empty(self.weight.shape, dtype=torch.float64)  # reused, since one for each could exhaust memory
        for place, copy in enumerate(range(start, stop)):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + copy)
            drawn = torch.randn(noise.shape, generator=generator, dtype=torch.float64, out=noise).to(weights.device)
            lengths = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
            torch.mul(scales, drawn, out=weights[place]).div_(lengths).add_(self.weight)
        return weights


class PerturbedLogits:
    """z + strength |w| |x| g per copy and class: logits that have the law of those of a `PerturbedHead` for any image.

    A perturbation w + strength |w| n / |n| adds strength |w| |x| times the cosine of n and x, and this cosine has the
    same law for every x. All images share the table g of cosines, whereas those of a `PerturbedHead` differ.

    Args:
        weight: Weight of the head, (classes, features), float64.
        bias: Its bias, float64.
        table: Return value of `table_of_cosines`.
        strength: Length of a perturbation relative to the weights of its class.
    """

    def __init__(
        self,
        weight: Float[Tensor, "classes features"],
        bias: Float[Tensor, " classes"],
        table: Float[Tensor, "copies classes"],
        strength: float,
    ) -> None:
        self.weight, self.bias, self.table = weight, bias, table
        self.lengths = strength * torch.linalg.vector_norm(weight, dim=1)

    def parts(self, features: Features) -> tuple[Logits, Logits]:
        """Return z and the factors of the table."""
        reach = torch.linalg.vector_norm(features, dim=1, keepdim=True) * self.lengths
        return torch.addmm(self.bias, features, self.weight.T), reach

    def logits(self, features: Features) -> Iterator[Float[Tensor, "batch copies classes"]]:
        """Return the logits of all copies, some copies at a time."""
        logits, reach = self.parts(features)
        budget = IN_CACHE if features.device.type == "cpu" else AT_A_TIME
        number = TRACED_IMAGES if is_traced() else max(1, features.shape[0])
        for block in torch.split(self.table, max(1, budget // (number * len(self.weight)))):
            yield torch.addcmul(logits[:, None], reach[:, None], block)


def table_of_cosines(copies: int, classes: int, width: int, seed: int) -> Float[Tensor, "copies classes"]:
    """Draw cosines of a random direction of `width` dimensions with a fixed one: nearly normal, variance 1 / width."""
    generator = np.random.default_rng(seed)
    along = generator.standard_normal((copies, classes))
    across = generator.chisquare(width - 1, (copies, classes)) if width > 1 else 0.0
    return torch.from_numpy(along / np.sqrt(along**2 + across))


def size_of(num_weights: int, copies: int) -> int:
    """Return the size of the weights of all copies in float64, in bytes."""
    return 8 * num_weights * copies
