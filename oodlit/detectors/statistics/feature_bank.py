"""Features of all training images, or of a part of them, for nearest neighbours."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.statistics.smallest_hashes import SmallestHashes
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs


class FeatureBank(SmallestHashes):
    """Features of the training images, for nearest neighbours.

    Args:
        rows: How many images to keep; None = the whole training set (1.28 million x 2048 features are 10 GB).
        ordered: Whether rows are in the order of their hashes; False is possible where all are kept, and cheaper.
    """

    needs = frozenset({"features"})

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "FeatureBank":
        """The largest bank that a detector asks for through its setting `bank_size`."""
        sizes: list[int | None] = [getattr(d, "bank_size", None) for d in detectors]
        known = [size for size in sizes if size is not None]
        rows = max(known) if known and len(known) == len(sizes) else None
        return cls(rows, ordered=bool(known))

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Features times a power of two each, and the norms of these, float64."""
        scaled = exact_scaling(outputs.require("features"))
        return {"features": scaled, "norms": torch.linalg.vector_norm(scaled, dim=1, dtype=torch.float64)}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state at its peak; the detectors share it."""
        return self._bytes_at_peak(num_train, 4 * width + 16)

    def bank(self, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Features of `rows` images (None = all) as `exact_scaling` gives them, and the norms of these, on the CPU.

        Raises:
            InvalidArgumentError: No row was seen, or a part is asked for where the order is not kept.
        """
        features, norms = self.column("features"), self.column("norms")
        if rows is not None and rows < len(features) and not self.ordered:
            raise InvalidArgumentError(f"FeatureBank: {rows} of {len(features)} images need ordered=True")
        return features[:rows], norms[:rows]


def exact_scaling(vectors: Float[Tensor, "rows features"]) -> Float[Tensor, "rows features"]:
    """Rows times a power of two that brings the largest entry into [0.5, 1): no rounding, no overflow later on.

    Example:
        >>> exact_scaling(torch.tensor([[3e30, 4e30], [0.0, 0.0]])).amax(dim=1)
        tensor([0.7889, 0.0000])
    """
    largest = torch.maximum(vectors.amax(dim=1, keepdim=True), -vectors.amin(dim=1, keepdim=True))
    exponents = torch.frexp(largest).exponent
    one = torch.ones_like(exponents, dtype=vectors.dtype)
    # Two steps where a row is tiny: 2^149, which the smallest numbers need, is not a float32.
    half = exponents.clamp(min=-100)
    scaled = vectors * torch.ldexp(one, -half)
    return scaled if torch.equal(half, exponents) else scaled * torch.ldexp(one, half - exponents)
