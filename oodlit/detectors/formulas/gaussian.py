"""Gaussian class distances, shared by several detectors."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_usual, is_traced, memo_key
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Moments, Statistics

RELATIVE_FLOOR = 1e-12
"""Smallest eigenvalue of a covariance relative to its largest. A direction that training never uses has zero variance;
the bound makes every deviation along it cost more than along a used direction, at any scale."""

TOLERANCE = 1e-9
"""Relative error allowed in the smallest distance of an image."""
DOUBLE_ERROR = 64 * torch.finfo(torch.float64).eps
"""Error of a sum of squares and products in float64, relative to its largest terms."""
ATTEMPTS = 3
"""Maximum number of times that the nearest class of an image is corrected."""

NO_SCATTER = 1e-24
"""Largest within-class variance that may be squared rounding error, relative to the variance of all images."""
BOUNDED = 1e-3
"""Relative difference at which a variance counts as below its bound; smaller differences may be rounding."""
SAFE = 1e-8
"""Smallest relative eigenvalue at which a Cholesky factor is as exact as eigenvectors."""


def whitening(
    covariance: Float[Tensor, "features features"], *, fallback_scale: float = 0.0
) -> Float[Tensor, "features features"]:
    """Return L with L L' = covariance^-1 in float64, with eigenvalues bounded relative to the largest.

    Args:
        covariance: Symmetric; may be singular, even all zero.
        fallback_scale: Replaces the largest eigenvalue if all are zero up to rounding (below 1e-24 of it).

    Example:
        >>> whitening(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))).abs().sum(dim=1).tolist()
        [0.5, 1.0]
    """
    inverse = _inverse_factor(covariance.double())
    # |L^-1|^2 bounds the inverse of the smallest eigenvalue and the trace bounds the largest one: far from the floor,
    # no eigenvalue has to be computed.
    if inverse is not None and 1 / float(inverse.square().sum()) > SAFE * float(covariance.diagonal().sum()):
        return inverse.T.contiguous()
    scaled = _whitening_of_scaled(covariance.double())
    if scaled is not None:
        return scaled
    values, vectors = torch.linalg.eigh(covariance.double())
    largest = float(values[-1])
    scale = largest if largest > NO_SCATTER * fallback_scale else fallback_scale
    floor = RELATIVE_FLOOR * (scale if scale > 0 else 1.0)
    whiten: Tensor = (vectors / values.clamp(min=floor).sqrt()).contiguous()  # same memory layout as after loading
    return whiten


def _whitening_of_scaled(covariance: Tensor) -> Tensor | None:
    """Whiten by way of the correlations, which preserves digits when features differ widely in scale.

    None if the correlations are ill-conditioned too, or if an eigenvalue may be below its bound.
    """
    scales = covariance.diagonal().sqrt()
    if not bool((scales > 0).all()):
        return None
    inverse = _inverse_factor(covariance / scales / scales[:, None])
    if inverse is None:
        return None
    factor = (inverse / scales).T.contiguous()
    exact = 1 / float(inverse.square().sum()) > SAFE * len(scales)
    unbounded = 1 / float(factor.square().sum()) > RELATIVE_FLOOR * float(covariance.diagonal().sum())
    return factor if exact and unbounded else None


def _inverse_factor(matrix: Tensor) -> Tensor | None:
    """Return the inverse of the Cholesky factor; None if the matrix is not positive definite."""
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return None
    inverse: Tensor = torch.linalg.solve_triangular(lower, torch.eye(len(lower)).to(lower), upper=False)
    return inverse


def class_gaussians(statistics: Statistics, kind: type[Moments] = ClassMoments) -> dict[str, Tensor]:
    """Return parameters of `class_distances` for the pooled covariance, shared by all detectors of a fit."""
    moments = statistics[kind]
    origin = statistics.memo((kind, "mean"), lambda: moments.mean)

    def compute() -> Tensor:
        # With one image per class there is no within-class scatter: use the scale of the total scatter.
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
    whiten: Float[Tensor, "features axes"],
    whitened_means: Float[Tensor, "classes axes"],
    class_means: Float[Tensor, "classes features"],
    kind: type[Moments] = ClassMoments,
) -> Float[Tensor, "batch classes"]:
    """Compute squared Mahalanobis distances to all class means, once per batch for equal parameters.

    One matrix product serves all classes: |xL|^2 - 2 (xL)(mu L)' + |mu L|^2, on centered features. If classes differ in
    a feature that hardly varies within them, these terms and their rounding errors exceed the distance by orders of
    magnitude. Affected images are centered on their nearest class and computed again, which bounds the error by the
    size of the distance.

    Args:
        outputs: A batch.
        origin: Global mean, subtracted from features and means.
        whiten: L.
        whitened_means: (mu_c - origin) L.
        class_means: mu_c.
        kind: Moments that the parameters come from; decides which rows of the batch are used.
    """

    def compute() -> Tensor:
        features, white = kind.rows_of(outputs).double(), _whitened(outputs, origin, whiten, kind)
        own, of_means = white.square().sum(dim=1), whitened_means.square().sum(dim=1)
        distances = torch.addmm(own[:, None] + of_means, white, whitened_means.T, alpha=-2).clamp_(min=0)
        if not is_traced() and len(distances):
            error = DOUBLE_ERROR * (own + of_means.amax())
            doubtful = error > TOLERANCE * distances.amin(dim=1)
            if not check_usual(~doubtful.any()):
                rows = doubtful.nonzero().flatten()
                _center_on_nearest(distances, rows, features, whiten, whitened_means, class_means)
        return distances

    return outputs.memo((kind, "class_distances", memo_key(origin, whiten, whitened_means, class_means)), compute)


def _whitened(outputs: Outputs, origin: Tensor, whiten: Tensor, kind: type[Moments]) -> Tensor:
    """Return (x - origin) L, once per batch."""
    key = (kind, "whitened", memo_key(origin, whiten))
    return outputs.memo(key, lambda: (kind.rows_of(outputs).double() - origin) @ whiten)


def _center_on_nearest(
    distances: Tensor, rows: Tensor, features: Tensor, whiten: Tensor, whitened_means: Tensor, class_means: Tensor
) -> None:
    """Recompute the distances of some rows in place, from differences to the nearest class so far.

    The distance to that class is then exact, and the others lose only as many digits as the classes are apart. If
    another class turns out to be nearer, the step is repeated with it.
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


def _relative_gaussians(state: dict[str, Tensor], moments: Moments) -> tuple[dict[str, Tensor], int]:
    """Diagonalize the pooled and the total covariance together, along the axes in which the class means differ.

    In whitened coordinates the pooled covariance is I, and the total one is I plus the scatter of the class means. The
    distances to a class mean and to the global mean agree along all other axes, so these are left out. This includes
    directions whose variance over all training images is below the bound: their rounding errors count for nothing.

    Args:
        state: Result of `class_gaussians`.
        moments: The statistic that it comes from.

    Returns:
        The state with at most classes - 1 columns of L and with the total variances along them, at least 1; and the
        number of directions that training never uses.
    """
    origin, whiten = state["origin"], state["whiten"]
    shares = moments.class_counts[moments.class_ids].double() / moments.num_samples
    means = state["whitened_means"] * shares.sqrt()[:, None]
    within = ((moments.within_covariance @ whiten) * whiten).sum(dim=0)
    bounded = (within < 1 - BOUNDED).nonzero().flatten()
    values, vectors = torch.linalg.eigh(within[bounded].diag() + means[:, bounded].T @ means[:, bounded])
    unused = vectors[:, values <= 1]
    means[:, bounded] -= means[:, bounded] @ unused @ unused.T
    _, spread, axes = torch.linalg.svd(means, full_matrices=False)
    spread, axes = spread[: len(means) - 1], axes[: len(means) - 1]  # their weighted sum is zero
    whiten = whiten @ axes.T
    directions = torch.nn.functional.normalize(state["whiten"][:, bounded] @ unused, dim=0)
    whiten -= directions @ (directions.T @ whiten)  # an image may lie far out along them
    whitened_means = (state["class_means"] - origin) @ whiten
    state = state | {"whiten": whiten, "whitened_means": whitened_means, "total_variances": 1 + spread.square()}
    return state, unused.shape[1]


class GaussianDetector(Detector):
    """Base class of the Mahalanobis detectors: one Gaussian per class with the pooled covariance."""

    needs = frozenset({"features"})
    moments: type[Moments] = ClassMoments
    """Statistic with the means and covariance; its rows of a batch are compared with them."""
    is_relative: ClassVar[bool] = False
    """Whether scores are relative to the distance to the mean of all training images."""

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        state = class_gaussians(statistics, self.moments)
        if self.is_relative:
            state, unused = _relative_gaussians(state, statistics[self.moments])
            if unused:
                self.note(f"the training features do not vary in {unused} directions; this does not affect scores")
        self.keep(**state)

    @final
    def _nearest(self, outputs: Outputs) -> Scores:
        """Squared distance to the nearest class mean, under the pooled covariance; if relative, along the kept axes."""
        parameters = (self.origin, self.whiten, self.whitened_means, self.class_means)
        return class_distances(outputs, *parameters, self.moments).amin(dim=1)

    @final
    def _from_mean(self, outputs: Outputs) -> Scores:
        """Squared distance to the mean of all training images, under the total covariance, along the kept axes."""
        if not hasattr(self, "total_variances"):  # a fit saved before the two covariances shared their axes
            return _whitened(outputs, self.origin, self.whiten_total, self.moments).square().sum(dim=1)
        white = _whitened(outputs, self.origin, self.whiten, self.moments)
        return white.square() @ self.total_variances.reciprocal()
