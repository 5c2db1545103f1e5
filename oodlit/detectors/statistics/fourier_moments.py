"""Moments of random Fourier features; their products approximate a Gaussian kernel of unit features."""

from functools import cache, lru_cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.outputs import Outputs
from oodlit.detectors.statistics.class_moments import GeneratedMoments, Moments, UnitMoments

MOST = 4096
"""Largest default number of Fourier features, with a scatter of 134 MB."""


@cache
def fourier_moments(size: int | None, gamma: float, seed: int) -> type[Moments]:
    """Return the statistic for one kernel: the same class for equal settings, so that detectors share its sums.

    Args:
        size: M, the number of Fourier features; None = twice the number of features, at most 4096.
        gamma: Gamma of the kernel exp(-gamma |a - b|^2).
        seed: Seed of the random directions.

    Example:
        >>> fourier_moments(None, 3.0, 0) is fourier_moments(None, 3.0, 0), fourier_moments(None, 3.0, 0).dimensions(64)
        (True, 128)
    """

    @final
    class FourierMoments(Moments, metaclass=GeneratedMoments):
        """Moments of random Fourier features of the unit features."""

        made_by = (fourier_moments, (size, gamma, seed))

        @staticmethod
        def rows_of(outputs: Outputs) -> Tensor:
            rows = UnitMoments.rows_of(outputs)
            width = rows.shape[1]
            return fourier_features(
                rows, *fourier_map(width, FourierMoments.dimensions(width), gamma, seed, rows.device)
            )

        @staticmethod
        def dimensions(width: int) -> int:
            return min(MOST, 2 * width) if size is None else size

    return FourierMoments


@lru_cache(maxsize=4)
def fourier_map(
    width: int, size: int, gamma: float, seed: int, device: torch.device
) -> tuple[Float[Tensor, "size width"], Float[Tensor, " size"]]:
    """Return A, normal with variance 2 gamma, and u, uniform in [0, 2 pi), drawn in float64 from the seed, A first."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(size, width, generator=generator, dtype=torch.float64) * (2 * gamma) ** 0.5
    phases = torch.rand(size, generator=generator, dtype=torch.float64) * (2 * torch.pi)
    return directions.to(device), phases.to(device)


def fourier_features(
    rows: Float[Tensor, "batch width"], directions: Float[Tensor, "size width"], phases: Float[Tensor, " size"]
) -> Float[Tensor, "batch size"]:
    """Return sqrt(2 / M) cos(A x + u)."""
    return torch.addmm(phases, rows, directions.T).cos_().mul_((2 / len(phases)) ** 0.5)
