"""Gaussian class distances that several detectors share."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_usual, is_traced, memo_key
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Moments, Statistics
from oodlit.outputs import Head, Outputs, Scores

RELATIVE_FLOOR = 1e-12
"""Smallest eigenvalue of a covariance relative to its largest. A direction that training never used has variance zero;
bounding it (not dropping it) makes every deviation along it cost more than along a used one, at any scale."""

TOLERANCE = 1e-9
"""Relative error that the smallest distance of an image may have."""
DOUBLE_ERROR = 64 * torch.finfo(torch.float64).eps
"""Error of a sum of squares and products in float64, relative to its largest terms."""
ATTEMPTS = 3
"""How often another class is taken for the nearest."""

NO_SCATTER = 1e-24
"""Largest variance within classes that may be a square of rounding errors, relative to the variance of all images."""
SAFE = 1e-8
"""Smallest eigenvalue relative to the largest from which on a Cholesky factor is as exact as eigenvectors."""


def whitening(
    covariance: Float[Tensor, "features features"], *, fallback_scale: float = 0.0
) -> Float[Tensor, "features features"]:
    """L with L L' = covariance^-1, in float64, eigenvalues bounded from below relative to the largest.

    Args:
        covariance: Symmetric; may be singular, also all zero.
        fallback_scale: Stands for the largest eigenvalue where all are zero up to rounding, that is below 1e-24 of it.

    Example:
        >>> whitening(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))).abs().sum(dim=1).tolist()
        [0.5, 1.0]
    """
    lower, failed = torch.linalg.cholesky_ex(covariance.double())
    if not failed:
        identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
        # |L^-1|^2 bounds the inverse of the smallest eigenvalue, the trace the largest: far from the floor, no
        # eigenvalue needs to be known.
        if 1 / float(inverse.square().sum()) > SAFE * float(covariance.diagonal().sum()):
            factor: Tensor = inverse.T.contiguous()
            return factor
    scaled = _whitening_of_scaled(covariance.double())
    if scaled is not None:
        return scaled
    values, vectors = torch.linalg.eigh(covariance.double())
    largest = float(values[-1])
    scale = largest if largest > NO_SCATTER * fallback_scale else fallback_scale
    floor = RELATIVE_FLOOR * (scale if scale > 0 else 1.0)
    whiten: Tensor = (vectors / values.clamp(min=floor).sqrt()).contiguous()  # as it comes back from a file
    return whiten


def _whitening_of_scaled(covariance: Tensor) -> Tensor | None:
    """Whitening by way of the correlations, which keeps the digits of features of very different scale.

    None where the correlations are ill-conditioned as well, or where an eigenvalue may lie below its bound.
    """
    scales = covariance.diagonal().sqrt()
    if not bool((scales > 0).all()):
        return None
    lower, failed = torch.linalg.cholesky_ex(covariance / scales / scales[:, None])
    if failed:
        return None
    identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
    factor = (inverse / scales).T.contiguous()
    exact = 1 / float(inverse.square().sum()) > SAFE * len(scales)
    unbounded = 1 / float(factor.square().sum()) > RELATIVE_FLOOR * float(covariance.diagonal().sum())
    return factor if exact and unbounded else None


def class_gaussians(statistics: Statistics, kind: type[Moments] = ClassMoments) -> dict[str, Tensor]:
    """Parameters of `class_distances` for the pooled covariance; the same tensors for all detectors of a fit."""
    moments = statistics[kind]
    origin = statistics.memo((kind, "mean"), lambda: moments.mean)

    def compute() -> Tensor:
        # One image per class leaves no scatter within classes: the total scatter then sets the scale.
        return whitening(moments.within_covariance, fallback_scale=moments.largest_variance)

    whiten = statistics.memo((kind, "within_whitening"), compute)
    return {
        "origin": origin,
        "whiten": whiten,
        "whitened_means": statistics.memo((kind, "whitened_means"), lambda: (moments.class_means - origin) @ whiten),
        "class_means": statistics.memo((kind, "class_means"), lambda: moments.class_means),
    }


def class_distances(
    outputs: Outputs,
    origin: Float[Tensor, " features"],
    whiten: Float[Tensor, "features features"],
    whitened_means: Float[Tensor, "classes features"],
    class_means: Float[Tensor, "classes features"],
    kind: type[Moments] = ClassMoments,
) -> Float[Tensor, "batch classes"]:
    """Squared Mahalanobis distances to all class means, computed once per batch for equal parameters.

    One matrix product for all classes: |xL|^2 - 2 (xL)(mu L)' + |mu L|^2, on centred features. Where classes differ in
    a feature that hardly varies within them, these terms are larger than the distance by many orders, and their
    rounding is larger than it as well. Images that this concerns are centred on their nearest class and done again:
    the error is then bounded by the size of the distance.

    Args:
        outputs: A batch.
        origin: Global mean that features and means were centred on.
        whiten: L.
        whitened_means: (mu_c - origin) L.
        class_means: mu_c.
        kind: The moments that the parameters come from; they say which rows of the batch are meant.
    """

    def compute() -> Tensor:
        features = kind.rows_of(outputs).double()
        white = (features - origin) @ whiten
        own, of_means = white.square().sum(dim=1), whitened_means.square().sum(dim=1)
        distances = torch.addmm(own[:, None] + of_means, white, whitened_means.T, alpha=-2).clamp_(min=0)
        if not is_traced() and len(distances):
            error = DOUBLE_ERROR * (own + of_means.amax())
            doubtful = error > TOLERANCE * distances.amin(dim=1)
            if not check_usual(~doubtful.any()):
                rows = doubtful.nonzero().flatten()
                _centre_on_nearest(distances, rows, features, whiten, whitened_means, class_means)
        return distances

    return outputs.memo((kind, "class_distances", memo_key(origin, whiten, whitened_means, class_means)), compute)


def _centre_on_nearest(
    distances: Tensor, rows: Tensor, features: Tensor, whiten: Tensor, whitened_means: Tensor, class_means: Tensor
) -> None:
    """Form the distances of some rows again, in place, from differences to the class that is nearest so far.

    Its own distance is exact then, and the others lose no more digits than the classes are apart. Another class may
    turn out to be nearer; then that one is taken.
    """
    for _ in range(ATTEMPTS):
        nearest = distances[rows].argmin(dim=1)
        for label in torch.unique(nearest).tolist():
            at = rows[nearest == label]
            white = (features[at] - class_means[label]) @ whiten
            away = whitened_means - whitened_means[label]
            squares = white.square().sum(dim=1, keepdim=True) + away.square().sum(dim=1)
            distances[at] = torch.addmm(squares, white, away.T, alpha=-2).clamp_(min=0)
        rows = rows[distances[rows].argmin(dim=1) != nearest]


class GaussianDetector(Detector):
    """Base of the Mahalanobis detectors: one Gaussian per class, all with the pooled covariance."""

    needs = frozenset({"features"})
    moments: ClassVar[type[Moments]] = ClassMoments
    """The statistic that gives means and covariance, and the rows of a batch that are compared with them."""
    is_relative: ClassVar[bool] = False
    """Whether the fit keeps the total covariance, too."""

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        self.keep(**class_gaussians(statistics, self.moments))
        if self.is_relative:
            moments = statistics[self.moments]
            key = (self.moments, "total_whitening")
            self.keep(whiten_total=statistics.memo(key, lambda: whitening(moments.total_covariance)))

    @final
    def _nearest(self, outputs: Outputs) -> Scores:
        """Squared distance to the nearest class mean, under the pooled covariance."""
        parameters = (self.origin, self.whiten, self.whitened_means, self.class_means)
        return class_distances(outputs, *parameters, self.moments).amin(dim=1)

    @final
    def _from_mean(self, outputs: Outputs) -> Scores:
        """Squared distance to the mean of all training images, under the total covariance."""
        centered = self.moments.rows_of(outputs).double() - self.origin
        return (centered @ self.whiten_total).square().sum(dim=1)
