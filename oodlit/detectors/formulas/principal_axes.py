"""Principal axes of moments, cut by a share of the variance; shared by CoP, CoRP and NECO."""

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import Moments
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs, Scores

REACHED = 1e-12
"""By how much less than the share of the variance may be reached: the rounding of a sum of eigenvalues."""
EQUAL = 1e-9
"""Relative difference of eigenvalues up to which their order is left to rounding."""


def check_share(owner: str, name: str, share: object) -> float:
    """The share of the variance, if it lies between 0 and 1.

    Raises:
        InvalidArgumentError: It does not.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise InvalidArgumentError(f"{owner}: {name}={share!r}; a share of the variance between 0 and 1 is needed")
    return float(share)


def axes_by_share(
    covariance: Float[Tensor, "width width"], share: float
) -> tuple[Float[Tensor, "width axes"], Float[Tensor, "width rest"]]:
    """The fewest principal axes that reach a share of the variance, and all the others.

    Axes whose variance equals that of the last one belong to them as well: which of them came first would be left to
    rounding. One axis is always left over. Without any variance all are.

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
    """Base of CoP and CoRP: minus the distance of a row from the principal axes of the training rows."""

    @final
    def _keep_rest(self, moments: Moments, share: float) -> None:
        """Keep the mean of the rows, and the axes beyond those that reach a share of their variance."""
        used, rest = axes_by_share(moments.total_covariance, share)
        if not used.shape[1]:
            self.note("the training features have one direction: scores are distances to it")
        self.keep(mean=moments.mean, rest=rest)

    @final
    def _score(self, outputs: Outputs) -> Scores:
        norms: Tensor = torch.linalg.vector_norm((self._rows(outputs) - self.mean) @ self.rest, dim=1)
        return -norms

    @abstractmethod
    def _rows(self, outputs: Outputs) -> Tensor:
        """The rows of a batch, as in the moments of the fit."""


def first_axes(covariance: Float[Tensor, "width width"], size: int) -> Float[Tensor, "width axes"]:
    """The `size` principal axes of largest variance."""
    return _axes(covariance)[1][:, :size].contiguous()


def _axes(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, not negative, and eigenvectors, from the largest down."""
    values, vectors = torch.linalg.eigh(covariance)
    return values.flip(0).clamp(min=0), vectors.flip(1)
