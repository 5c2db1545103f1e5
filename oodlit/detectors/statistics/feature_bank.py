"""Features of all training images, or of a part of them, for nearest neighbours."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_usual
from oodlit.detectors.statistics.row_store import PAGE_BYTES
from oodlit.detectors.statistics.smallest_hashes import SmallestHashes
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

Copies: TypeAlias = Literal["auto", "process", "machine"]
"""What holds a copy of the bank: each process, each machine, or whichever suits its size."""
REPLICATED_SHARE = 0.05
"""Largest share of a machine's memory that the copies of all its processes may take; beyond, there is one copy."""


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
        """Memory of the state at its peak, in each process; the detectors share it."""
        if not self.is_shared:
            return self._bytes_at_peak(num_train, 4 * width + 16)
        own, copy = num_train / self._processes, num_train / self._sharing  # rows of one's own, and a part of the copy
        return round((own + copy) * (4 * width + 16)) + PAGE_BYTES

    def place(
        self, copies: Copies, *, width: int, num_train: int, processes: int, sharing: int, memory: int | None
    ) -> str:
        """Choose what holds a copy of the bank, before anything is taken in; the same choice in all processes.

        Args:
            copies: What is asked for.
            width: Number of features.
            num_train: Number of training images.
            processes: Number of processes.
            sharing: Number of those on this machine.
            memory: Bytes of memory of this machine; None = unknown, each process then holds a copy.

        Returns:
            The choice in words; empty for a single process.

        Example:
            >>> kwargs = {"width": 2048, "num_train": 1_281_167, "processes": 8, "sharing": 4}
            >>> FeatureBank(ordered=False).place("auto", **kwargs, memory=512 * 10**9)
            'the bank of 1281167 training images (10.5 GB) is held once a machine, by its 4 processes together'
            >>> FeatureBank(1000).place("auto", **kwargs, memory=512 * 10**9)
            'the bank of 1000 training images (0.0 GB) is held by each of 8 processes'
        """
        if processes == 1:
            return ""
        rows = num_train if self.rows is None else min(self.rows, num_train)
        size = rows * (4 * width + 8)
        is_large = memory is not None and size * sharing > REPLICATED_SHARE * memory
        # Sorting makes a copy, and only banks of which a part is asked for are sorted.
        can_be = sharing > 1 and not self.ordered
        self.is_shared = can_be and (copies == "machine" or (copies == "auto" and is_large))
        self._processes, self._sharing = processes, sharing
        each, together = f"by each of {processes} processes", f"once a machine, by its {sharing} processes together"
        where = together if self.is_shared else each
        return f"the bank of {rows} training images ({size / 1e9:.1f} GB) is held {where}"

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
    return scaled if check_usual((half == exponents).all()) else scaled * torch.ldexp(one, half - exponents)
