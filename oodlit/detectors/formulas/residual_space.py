"""The subspace that training features hardly use, shared by ViM and Residual."""

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_ints, memo_key
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import BackboneFacts, Head, Outputs, Scores
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Statistics

UNUSED = 1e-12
"""Largest mean square along a direction that counts as unused, relative to the variance of the features."""
ROUNDING = 1e-14
"""Largest mean square along an unused direction, relative to the largest eigenvalue, which limits the precision."""


def default_dim(width: int) -> int:
    """Return the default dimension of the principal space for features of a given width.

    Example:
        >>> [default_dim(w) for w in (2048, 768, 48)]
        [1000, 512, 24]
    """
    return 1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2)


class ResidualSpace(NamedTuple):
    """The residual space and its scales; everything in float64.

    Args:
        origin: u = -W^+ b.
        basis: R, columns of unit length.
        spread: Root mean squared distance of the training features to their mean, or to u if all are equal.
        slope: Largest norm of W_c over directions that no training image uses: the rate at which a logit can grow with
            a residual unknown to training. Along used directions it can grow faster.
        note: Note for the user; empty if there is none.
    """

    origin: Float[Tensor, " features"]
    basis: Float[Tensor, "features residual"]
    spread: float
    slope: float
    note: str


def below_width(detector: Any, facts: BackboneFacts) -> str:
    """Requirement: the principal space is smaller than the feature space."""
    size = default_dim(facts.width) if detector.dim is None else detector.dim
    if size < facts.width or not facts.width:
        return ""
    way_out = f"dim <= {facts.width - 1}" if facts.width > 1 else "a wider layer"
    return (
        f"needs more features than the {size} dimensions of its principal space, but {facts.name} has"
        f" {facts.width}; use {way_out}"
    )


class ResidualDetector(Detector):
    """Base class of detectors with the residual space R around the origin u.

    Args:
        dim: Dimension of the principal space; None = `default_dim`.

    Raises:
        InvalidArgumentError: `dim` is below 1.
    """

    requirements = (below_width,)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        check_ints(type(self).__name__, dim=dim, optional=True)
        self.dim = dim

    @final
    def _keep_space(self, statistics: Statistics, head: Head) -> ResidualSpace:
        """Keep the complement of the first `dim` eigenvectors of (1/N) sum (x-u)(x-u)'.

        Directions that no training image uses, up to rounding, are never part of the principal space: if training spans
        fewer than `dim` dimensions, rounding would decide which of them come first.

        Raises:
            InvalidArgumentError: `dim` is not below the number of features.
        """
        moments = statistics[ClassMoments]
        width = moments.scatter.shape[0]
        size = default_dim(width) if self.dim is None else self.dim
        if size >= width:
            raise InvalidArgumentError(
                f"{self!r}: expected the principal space to have fewer dimensions than the {width} features, got"
                f" {size}; {f'use dim <= {width - 1}' if width > 1 else 'at least 2 features are required'}"
            )
        self.note_setting("dim", size, f"{width} features")
        # One tensor for all detectors with this dimension, so that `_residual_norms` recognizes it.
        space = statistics.memo(("residual_space", size), lambda: _space(statistics, head, size))
        if space.note:
            self.note(space.note)
        self.keep(origin=space.origin, residual=space.basis)
        return space

    @final
    def _residual_norms(self, outputs: Outputs) -> Scores:
        """|R'(x - u)| in float64, computed once per batch for equal parameters."""

        def compute() -> Tensor:
            centered = outputs.require("features").double() - self.origin
            norms: Tensor = torch.linalg.vector_norm(centered @ self.residual, dim=1)
            return norms

        return outputs.memo(("residual_norms", memo_key(self.origin, self.residual)), compute)


def _space(statistics: Statistics, head: Head, size: int) -> ResidualSpace:
    moments = statistics[ClassMoments]
    origin, values, vectors, variance = statistics.memo("axes_around_head_origin", lambda: _axes(moments, head))
    used = int((values > max(UNUSED * variance, ROUNDING * float(values[0]))).sum())
    basis = vectors[:, min(size, used) :].contiguous()
    unused = head.weight.double().to(vectors.device) @ vectors[:, used:]
    slope = float(unused.square().sum(dim=1).amax().sqrt())
    note = (
        f"the training features span only {used} dimensions, so the principal space has {used} instead of {size}; fit"
        " on more images, or use a layer whose features are not always zero"
    )
    away = float((moments.mean - origin).square().sum())
    spread = variance if variance > 1e-24 * away else away  # squared rounding errors do not count as variance
    return ResidualSpace(origin, basis, spread**0.5, slope, note if used < size else "")


def _axes(moments: ClassMoments, head: Head) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return origin, eigenvalues and eigenvectors of the second moment around it (descending), and the variance."""
    # The shortest of the nearest solutions of W u = -b, like the pseudo-inverse. The CPU allows any rank.
    unmasked = head.unmasked.to("cpu", torch.float64)  # a masked class has no equation
    # By singular values: the default of some torch versions reads uninitialized memory for rank-deficient matrices.
    solution = torch.linalg.lstsq(unmasked.weight, -unmasked.offset[:, None], driver="gelsd").solution
    origin = solution[:, 0].to(moments.mean.device)
    shift = moments.mean - origin
    covariance = moments.total_covariance
    values, vectors = torch.linalg.eigh(covariance + torch.outer(shift, shift))
    return origin, values.flip(0), vectors.flip(1), float(covariance.trace())
