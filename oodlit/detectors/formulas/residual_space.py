"""The space that the training features hardly use; shared by ViM and Residual."""

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_int, memo_key
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Statistics
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import BackboneFacts, Head, Outputs, Scores

UNUSED = 1e-12
"""Largest mean square along a direction that counts as unused, relative to the variance of the features."""
ROUNDING = 1e-14
"""The same, relative to the largest eigenvalue: as exact are the others."""


def default_dim(width: int) -> int:
    """Dimension of the principal space for features of a given width.

    Example:
        >>> [default_dim(w) for w in (2048, 768, 48)]
        [1000, 512, 24]
    """
    if width >= 2048:
        return 1000
    return 512 if width >= 768 else max(1, width // 2)


class ResidualSpace(NamedTuple):
    """The space, and what it is measured by; everything in float64.

    Args:
        origin: u = -W^+ b.
        basis: R, columns of unit length.
        spread: Root of the mean squared distance of the training features to their mean, or to u where all are equal.
        slope: Largest norm of W_c over the directions that no training image uses: so much can a logit grow with a
            residual that training knows nothing of. Along directions that training uses it can grow faster.
        note: What a user should know; empty if there is nothing.
    """

    origin: Float[Tensor, " features"]
    basis: Float[Tensor, "features residual"]
    spread: float
    slope: float
    note: str


def below_width(detector: Any, facts: BackboneFacts) -> str:
    """Requirement of detectors with a principal space: it leaves something over."""
    size = default_dim(facts.width) if detector.dim is None else detector.dim
    if size < facts.width or not facts.width:
        return ""
    way_out = f"dim <= {facts.width - 1}" if facts.width > 1 else "a wider layer"
    return f"needs more than the {size} features of its principal space, {facts.name} has {facts.width}; use {way_out}"


class ResidualDetector(Detector):
    """A detector that keeps the residual space R around the origin u.

    Args:
        dim: Dimension of the principal space; None = that of `default_dim`.

    Raises:
        InvalidArgumentError: `dim` is below 1.
    """

    requirements = (below_width,)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        check_int(type(self).__name__, "dim", dim, optional=True)
        self.dim = dim

    @final
    def _keep_space(self, statistics: Statistics, head: Head | None) -> ResidualSpace:
        """Keep what the first `dim` eigenvectors of (1/N) sum (x-u)(x-u)' leave over.

        Directions that no training image uses, up to rounding, never belong to the principal space: where training
        spans fewer than `dim` dimensions, which of them came first would be left to rounding.

        Raises:
            InvalidArgumentError: `dim` is not below the number of features.
        """
        assert head is not None  # checked by `fit`
        moments = statistics[ClassMoments]
        width = moments.scatter.shape[0]
        size = default_dim(width) if self.dim is None else self.dim
        if size >= width:
            raise InvalidArgumentError(
                f"{self!r}: the principal space has {size} dimensions but there are only {width} features;"
                + (f" use dim <= {width - 1}" if width > 1 else " at least 2 are needed")
            )
        # One tensor for all detectors with this dimension: `_residual_norms` recognises it.
        space = statistics.memo(("residual_space", size), lambda: _space(statistics, head, size))
        if space.note:
            self.note(space.note)
        self.keep(origin=space.origin, residual=space.basis)
        return space

    @final
    def _residual_norms(self, outputs: Outputs) -> Scores:
        """|R'(x - u)| in float64, computed once per batch for equal parameters."""

        def compute() -> Tensor:
            centred = outputs.require("features").double() - self.origin
            norms: Tensor = torch.linalg.vector_norm(centred @ self.residual, dim=1)
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
        f"the training features span {used} dimensions: so many has the principal space, not {size};"
        " fit on more images, or on features without units that are always zero"
    )
    away = float((moments.mean - origin).square().sum())
    spread = variance if variance > 1e-24 * away else away  # squares of rounding errors are no variance
    return ResidualSpace(origin, basis, spread**0.5, slope, note if used < size else "")


def _axes(moments: ClassMoments, head: Head) -> tuple[Tensor, Tensor, Tensor, float]:
    """Origin, eigenvalues and eigenvectors of the second moment around it, from the largest down, and the variance."""
    # The shortest of the nearest solutions of W u = -b, as the pseudo-inverse gives it. The CPU allows any rank.
    unmasked = head.unmasked.to("cpu", torch.float64)  # a masked class has no equation
    # By singular values: the default of some versions of torch reads unwritten memory where rank is missing.
    solution = torch.linalg.lstsq(unmasked.weight, -unmasked.offset[:, None], driver="gelsd").solution
    origin = solution[:, 0].to(moments.mean.device)
    shift = moments.mean - origin
    covariance = moments.total_covariance
    values, vectors = torch.linalg.eigh(covariance + torch.outer(shift, shift))
    return origin, values.flip(0), vectors.flip(1), float(covariance.trace())
