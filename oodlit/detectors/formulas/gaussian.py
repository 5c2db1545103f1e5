"""Gaussian class distances that several detectors share."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.checks import all_finite, memo_key
from oodlit.detectors.statistics import ClassMoments, Statistics
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = ["class_distances", "class_gaussians", "squared_norms", "total_whitening", "whitening", "within_whitening"]

RELATIVE_FLOOR = 1e-12
"""Smallest eigenvalue of a covariance relative to its largest. A direction that training never used has variance zero;
bounding it (not dropping it) makes every deviation along it cost more than along a used one, at any scale."""

SAFE = 1e-8
"""Smallest eigenvalue relative to the largest from which on a Cholesky factor is as exact as eigenvectors."""


def whitening(
    covariance: Float[Tensor, "features features"], *, fallback_scale: float = 0.0
) -> Float[Tensor, "features features"]:
    """L with L L' = covariance^-1, in float64, eigenvalues bounded from below relative to the largest.

    Args:
        covariance: Symmetric; may be singular, also all zero.
        fallback_scale: Stands for the largest eigenvalue where all are zero up to rounding, that is below 1e-12 of it.

    Example:
        >>> whitening(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))).abs().sum(dim=1).tolist()
        [0.5, 1.0]

    Raises:
        InvalidArgumentError: The covariance is not finite.
    """
    if not all_finite(covariance):
        raise InvalidArgumentError("the features are so large that their squares leave float64; scale them down")
    lower, failed = torch.linalg.cholesky_ex(covariance.double())
    if not failed:
        identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
        # |L^-1|^2 bounds the inverse of the smallest eigenvalue, the trace the largest: far from the floor, no
        # eigenvalue needs to be known.
        if 1 / float(inverse.square().sum()) > SAFE * float(covariance.diagonal().sum()):
            factor: Tensor = inverse.T.contiguous()
            return factor
    values, vectors = torch.linalg.eigh(covariance.double())
    largest = float(values[-1])
    scale = largest if largest > RELATIVE_FLOOR * fallback_scale else fallback_scale
    floor = RELATIVE_FLOOR * (scale if scale > 0 else 1.0)
    whiten: Tensor = (vectors / values.clamp(min=floor).sqrt()).contiguous()  # as it comes back from a file
    return whiten


def within_whitening(statistics: Statistics) -> Float[Tensor, "features features"]:
    """Whitening of the pooled within-class covariance, decomposed once for all detectors of a fit."""
    moments = statistics[ClassMoments]

    def compute() -> Tensor:
        # One image per class leaves no scatter within classes: the total scatter then sets the scale.
        return whitening(moments.within_covariance, fallback_scale=moments.largest_variance)

    return statistics.memo("within_whitening", compute)


def class_gaussians(statistics: Statistics) -> dict[str, Tensor]:
    """Parameters of `class_distances` for the pooled covariance; the same tensors for all detectors of a fit."""
    moments = statistics[ClassMoments]
    origin, whiten = statistics.memo("feature_mean", lambda: moments.mean), within_whitening(statistics)
    return {
        "origin": origin,
        "whiten": whiten,
        "whitened_means": statistics.memo("whitened_means", lambda: (moments.class_means - origin) @ whiten),
    }


def total_whitening(statistics: Statistics) -> Float[Tensor, "features features"]:
    """Whitening of the total covariance, decomposed once for all detectors of a fit."""
    return statistics.memo("total_whitening", lambda: whitening(statistics[ClassMoments].total_covariance))


def class_distances(
    outputs: Outputs,
    origin: Float[Tensor, " features"],
    whiten: Float[Tensor, "features features"],
    whitened_means: Float[Tensor, "classes features"],
) -> Float[Tensor, "batch classes"]:
    """Squared Mahalanobis distances to all class means, computed once per batch for equal parameters.

    One matrix product for all classes: |xL|^2 - 2 (xL)(mu L)' + |mu L|^2, on centred features.

    Args:
        outputs: A batch.
        origin: Global mean that features and means were centred on.
        whiten: L.
        whitened_means: (mu_c - origin) L.
    """

    def compute() -> Tensor:
        white = (outputs.require("features").double() - origin) @ whiten
        squares = white.square().sum(dim=1, keepdim=True) + whitened_means.square().sum(dim=1)
        return torch.addmm(squares, white, whitened_means.T, alpha=-2).clamp_(min=0)

    return outputs.memo(("class_distances", memo_key(origin, whiten, whitened_means)), compute)


def squared_norms(
    outputs: Outputs, origin: Float[Tensor, " features"], whiten: Float[Tensor, "features features"]
) -> Float[Tensor, " batch"]:
    """|(x - origin) L|^2 in float64."""
    return ((outputs.require("features").double() - origin) @ whiten).square().sum(dim=1)
