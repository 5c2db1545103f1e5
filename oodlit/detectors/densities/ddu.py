"""Deep deterministic uncertainty: a Gaussian per class."""

import math
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints
from oodlit.base.outputs import BackboneFacts, Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.gaussian import DOUBLE_ERROR, RELATIVE_FLOOR, TOLERANCE, class_distances, class_gaussians
from oodlit.detectors.statistics import ClassCovariances, ClassMoments, ClassVariances, Statistic, Statistics

STATISTICS: dict[str, type[ClassCovariances | ClassVariances | ClassMoments]] = {
    "full": ClassCovariances,
    "tied": ClassMoments,
    "diagonal": ClassVariances,
}


def _covariances_fit(detector: "DDU", facts: BackboneFacts) -> str:
    needed = 8 * facts.num_classes * facts.width**2
    if detector.covariance != "full" or needed <= detector.max_bytes:
        return ""
    return (
        f"{facts.num_classes} covariances of {facts.width} features require {needed / 2**30:.1f} GiB, above the limit"
        f" of {detector.max_bytes / 2**30:.1f} GiB; use covariance='tied' or 'diagonal', or raise max_bytes"
    )


@final
class DDU(Detector):
    """S = log sum_c N(x; mu_c, Sigma_c), the log density of Gaussians with equal weights.

    Covariances are divided by the number of images. If one is not positive definite, a multiple of the identity is
    added: 1e-12 of the mean total variance, increased tenfold until it suffices. Classes without images are left out.

    Args:
        covariance: "full" (one matrix per class; C D^2 memory and work), "tied" (the pooled within-class matrix;
            default) or "diagonal" (variances per class, bounded at 1e-12 of the largest).
        max_bytes: Memory limit of the "full" form, default 4 GiB. Beyond it the detector is refused before the run.

    Raises:
        InvalidArgumentError: `covariance` is unknown, or `max_bytes` is not positive.
        RequirementError: During the fit, the full matrices would exceed `max_bytes`.

    Example:
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> detector = DDU(covariance="full")
        >>> fit([detector], [Outputs(features=x, labels=torch.zeros(4, dtype=torch.int64))])
        >>> [round(s, 4) for s in detector.score(Outputs(features=torch.tensor([[0.0, 0.0]]))).tolist()]  # -log 2 pi
        [-1.8379]
    """

    needs = frozenset({"features"})
    statistics: tuple[type[Statistic], ...] = (ClassMoments,)
    requirements = (_covariances_fit,)
    invariances = frozenset({"class_permutation"})
    same_order_as: ClassVar = {
        "mahalanobis": ("with a tied covariance, the nearest class dominates the sum over classes in DDU")
    }
    presets: ClassVar = {"paper": {"covariance": "full"}}
    reference = Reference(
        "Deep Deterministic Uncertainty: A New Simple Baseline",
        "J. Mukhoti",
        "CVPR",
        2023,
        "https://arxiv.org/abs/2102.11582",
        "classes have equal weights; covariances are divided by the number of images; covariance='tied' is the"
        " default, since full covariances of ImageNet's classes require 31 GiB for 2048 features",
    )

    def __init__(self, covariance: Literal["full", "tied", "diagonal"] = "tied", max_bytes: int = 4 * 2**30) -> None:
        super().__init__()
        check_choice("DDU", "covariance", covariance, STATISTICS)
        check_ints("DDU", max_bytes=max_bytes)
        self.covariance = covariance
        self.max_bytes = max_bytes
        self.statistics = (STATISTICS[covariance],)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        moments = statistics[STATISTICS[self.covariance]]
        if isinstance(moments, ClassMoments):
            state = class_gaussians(statistics)
            # |L|: the determinant of the whitening, up to sign.
            log_norms = torch.linalg.slogdet(state["whiten"]).logabsdet.expand(len(state["whitened_means"]))
        else:
            assert isinstance(moments, (ClassCovariances, ClassVariances))
            factors, log_norms = self._factors(moments)
            means = moments.class_means
            state = {"origin": means.mean(dim=0), "means": means, "factors": factors}
        constant = moments.class_means.shape[1] / 2 * math.log(2 * math.pi)
        self.keep(**state, log_norms=log_norms - constant)

    def _factors(self, moments: ClassCovariances | ClassVariances) -> tuple[Tensor, Tensor]:
        """Return roots of the inverse covariances, and the logarithms of their determinants."""
        if isinstance(moments, ClassVariances):
            variances = moments.variances
            largest = float(variances.amax())
            factors = variances.clamp(min=RELATIVE_FLOOR * (largest if largest > 0 else 1.0)).rsqrt()
            return factors, factors.log().sum(dim=1)
        factors = _inverse_factors(moments.covariances, _scale(moments))
        return factors, factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)

    def _score(self, outputs: Outputs) -> Scores:
        if self.covariance == "tied":
            distances = class_distances(outputs, self.origin, self.whiten, self.whitened_means, self.class_means)
        else:
            x = outputs.require("features").double()
            distances = self._full(x) if self.covariance == "full" else self._diagonal(x)
        return (self.log_norms - distances / 2).logsumexp(dim=1)

    def _full(self, x: Tensor) -> Tensor:
        classes = zip(self.means, self.factors, strict=True)
        return torch.stack([((x - mean) @ factor).square().sum(dim=1) for mean, factor in classes], dim=1)

    def _diagonal(self, x: Tensor) -> Tensor:
        precision, centered, means = self.factors.square(), x - self.origin, self.means - self.origin
        scaled = means * precision
        squares = centered.square() @ precision.T + (scaled * means).sum(dim=1)
        distances = (squares - 2 * centered @ scaled.T).clamp(min=0)
        # For a variance at its bound, squares and products exceed the distance by orders of magnitude.
        rows = (DOUBLE_ERROR * squares > TOLERANCE * distances).any(dim=1).nonzero().flatten()
        for label, (mean, factor) in enumerate(zip(self.means, self.factors, strict=True) if len(rows) else ()):
            distances[rows, label] = ((x[rows] - mean) * factor).square().sum(dim=1)
        return distances


def _scale(moments: ClassCovariances) -> float:
    """Return the mean total variance, within and between classes."""
    share = moments.counts.double() / moments.counts.sum()
    within = (moments.covariances.diagonal(dim1=1, dim2=2).mean(dim=1) * share).sum()
    mean = share @ moments.class_means
    between = ((moments.class_means - mean).square().mean(dim=1) * share).sum()
    total = float(within + between)
    return total if total > 0 else 1.0


def _inverse_factors(
    covariances: Float[Tensor, "classes features features"], scale: float
) -> Float[Tensor, "classes features features"]:
    """Return L^-T of every covariance L L', with jitter if it is not positive definite."""
    identity = torch.eye(covariances.shape[1], dtype=covariances.dtype, device=covariances.device)
    factors = torch.empty_like(covariances)
    for i, covariance in enumerate(covariances):
        jitter = 0.0
        factor, info = torch.linalg.cholesky_ex(covariance)
        # Rounding can let a singular matrix pass: also require that its smallest pivot stands out from zero.
        while int(info) or float(factor.diagonal().amin()) ** 2 < RELATIVE_FLOOR * float(covariance.diagonal().amax()):
            jitter = max(10 * jitter, RELATIVE_FLOOR * scale)
            factor, info = torch.linalg.cholesky_ex(covariance + jitter * identity)
        factors[i] = torch.linalg.solve_triangular(factor, identity, upper=False).T
    return factors
