"""Features of all or some training images, for nearest neighbors."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_usual
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs
from oodlit.detectors.statistics.row_store import PAGE_BYTES
from oodlit.detectors.statistics.smallest_hashes import SmallestHashes

Copies: TypeAlias = Literal["auto", "process", "machine"]
"""Where to keep copies of the bank: one per process, one per machine, or by size."""
REPLICATED_SHARE = 0.05
"""Largest fraction of a machine's memory for copies in all its processes; a larger bank has one copy."""


class FeatureBank(SmallestHashes):
    """Features of the training images, for nearest neighbors.

    Args:
        rows: Number of images to keep; None = the whole training set (1.28 million x 2048 features are 10 GB).
        ordered: Whether to order rows by their hashes; False requires keeping all rows, and is cheaper.
    """

    needs = frozenset({"features"})

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "FeatureBank":
        """Create the largest bank that a detector requests with its setting `bank_size`."""
        sizes: list[int | None] = [getattr(d, "bank_size", None) for d in detectors]
        known = [size for size in sizes if size is not None]
        rows = max(known) if known and len(known) == len(sizes) else None
        return cls(rows, ordered=bool(known))

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return the features, each scaled by a power of two, and the norms of the scaled features, float64."""
        scaled = exact_scaling(outputs.require("features"))
        return {"features": scaled, "norms": torch.linalg.vector_norm(scaled, dim=1, dtype=torch.float64)}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the peak memory of the state in each process; the detectors share it."""
        if not self.is_shared:
            return self._bytes_at_peak(num_train, 4 * width + 16)
        rows = num_train / self._processes + num_train / self._sharing  # own rows, and a part of the copy
        return round(rows * (4 * width + 16)) + PAGE_BYTES

    def place(
        self, copies: Copies, *, width: int, num_train: int, processes: int, sharing: int, memory: int | None
    ) -> str:
        """Decide where to keep copies of the bank, before the first batch; all processes decide alike.

        Args:
            copies: The user's choice.
            width: Number of features.
            num_train: Number of training images.
            processes: Number of processes.
            sharing: Number of processes on this machine.
            memory: Memory of this machine in bytes; None = unknown, which means one copy per process.

        Returns:
            A description of the decision; empty for a single process.

        Example:
            >>> kwargs = {"width": 2048, "num_train": 1_281_167, "processes": 8, "sharing": 4}
            >>> FeatureBank(ordered=False).place("auto", **kwargs, memory=512 * 10**9)
            'the bank of 1,281,167 training images (10.5 GB) is kept once per machine, shared by its 4 processes'
            >>> FeatureBank(1000).place("auto", **kwargs, memory=512 * 10**9)
            'the bank of 1,000 training images (8.2 MB) is kept once in each of the 8 processes'
        """
        if processes == 1:
            return ""
        rows = num_train if self.rows is None else min(self.rows, num_train)
        size = rows * (4 * width + 8)
        is_large = memory is not None and size * sharing > REPLICATED_SHARE * memory
        # Sorting makes a copy, and only partial banks are sorted.
        can_be = sharing > 1 and not self.ordered
        self.is_shared = can_be and (copies == "machine" or (copies == "auto" and is_large))
        self._processes, self._sharing = processes, sharing
        where = f"once per machine, shared by its {sharing}" if self.is_shared else f"once in each of the {processes}"
        memory_of_bank = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
        return f"the bank of {rows:,} training images ({memory_of_bank}) is kept {where} processes"

    def bank(self, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Return features of `rows` images (None = all) on the CPU, scaled by `exact_scaling`, and their norms.

        Raises:
            InvalidArgumentError: There are no rows, or a part is requested but the order was not kept.
        """
        features, norms = self.column("features"), self.column("norms")
        if rows is not None and rows < len(features) and not self.ordered:
            raise InvalidArgumentError(
                f"FeatureBank: reading {rows} of {len(features)} images requires a bank with ordered=True"
            )
        return features[:rows], norms[:rows]


def exact_scaling(vectors: Float[Tensor, "rows features"]) -> Float[Tensor, "rows features"]:
    """Scale rows exactly, by a power of two that brings the largest entry into [0.5, 1), to avoid overflow later.

    Example:
        >>> exact_scaling(torch.tensor([[3e30, 4e30], [0.0, 0.0]])).amax(dim=1)
        tensor([0.7889, 0.0000])
    """
    largest = torch.maximum(vectors.amax(dim=1, keepdim=True), -vectors.amin(dim=1, keepdim=True))
    exponents = torch.frexp(largest).exponent
    one = torch.ones_like(exponents, dtype=vectors.dtype)
    # Two steps for tiny rows: 2^149, required for the smallest numbers, exceeds float32.
    half = exponents.clamp(min=-100)
    scaled = vectors * torch.ldexp(one, -half)
    return scaled if check_usual((half == exponents).all()) else scaled * torch.ldexp(one, half - exponents)
