"""Principal axes up to a fraction of the variance, shared by CoP, CoRP and NECO."""

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import Moments

REACHED = 1e-12
"""Tolerance for reaching the fraction of the variance: rounding of a sum of eigenvalues."""
EQUAL = 1e-9
"""Relative difference up to which eigenvalues count as equal."""


def check_share(owner: str, name: str, share: object) -> float:
    """Return the fraction of the variance, checked to be between 0 and 1.

    Raises:
        InvalidArgumentError: It is not.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise InvalidArgumentError(f"{owner}: expected {name} to be in (0, 1), got {share!r}")
    return float(share)


def axes_by_share(
    covariance: Float[Tensor, "width width"], share: float
) -> tuple[Float[Tensor, "width axes"], Float[Tensor, "width rest"]]:
    """Return the fewest principal axes that reach a fraction of the variance, and the remaining axes.

    Axes with the same variance as the last one are included, since rounding decides their order. At least one axis
    always remains. Without any variance all remain.

    Example:
        >>> first, rest = axes_by_share(torch.diag(torch.tensor([6.0, 3.0, 1.0]).double()), 0.8)
        >>> first.shape[1], rest.shape[1]
        (2, 1)
    """
    values, vectors = _axes(covariance)
    total = float(values.sum())
    if total == 0:
        return vectors[:, :0], vectors
    size = int((values.cumsum(0) < (share - REACHED) * total).sum()) + 1
    size = max(size, int((values >= (1 - EQUAL) * values[min(size, len(values)) - 1]).sum()))
    size = min(size, len(values) - 1)
    return vectors[:, :size].contiguous(), vectors[:, size:].contiguous()


class KernelPCA(Detector):
    """Base class of CoP and CoRP, which return minus the distance from the principal axes of training."""

    @final
    def _keep_rest(self, moments: Moments, share: float) -> None:
        """Keep the mean of the rows, and the axes left after the first ones that reach a fraction of the variance."""
        used, rest = axes_by_share(moments.total_covariance, share)
        if not used.shape[1]:
            self.note("the training features have a single direction; scores are distances from this direction")
        by_used = 2 * used.shape[1] < rest.shape[1]  # the distance by the smaller products
        self.keep(mean=moments.mean, used=used[:, : by_used * used.shape[1]], rest=rest[:, by_used * rest.shape[1] :])

    @final
    def _score(self, outputs: Outputs) -> Scores:
        away = self._rows(outputs) - self.mean
        beyond = away @ self.rest if self.rest.shape[1] else torch.addmm(away, away @ self.used, self.used.T, alpha=-1)
        norms: Tensor = torch.linalg.vector_norm(beyond, dim=1)
        return -norms

    @abstractmethod
    def _rows(self, outputs: Outputs) -> Tensor:
        """Rows of a batch, as in the moments of the fit."""


def first_axes(covariance: Float[Tensor, "width width"], size: int) -> Float[Tensor, "width axes"]:
    """Return the `size` principal axes with the largest variance."""
    return _axes(covariance)[1][:, :size].contiguous()


def _axes(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, clamped at zero, and eigenvectors in descending order."""
    values, vectors = torch.linalg.eigh(covariance)
    return values.flip(0).clamp(min=0), vectors.flip(1)
