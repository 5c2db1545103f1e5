"""The space that the training features hardly use; shared by ViM and Residual."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.checks import memo_key
from oodlit.detectors.statistics import ClassMoments, Statistics
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs

__all__ = ["default_dim", "residual_basis", "residual_norms"]


def default_dim(width: int) -> int:
    """Dimension of the principal space for features of a given width.

    Example:
        >>> [default_dim(w) for w in (2048, 768, 48)]
        [1000, 512, 24]
    """
    if width >= 2048:
        return 1000
    return 512 if width >= 768 else max(1, width // 2)


def residual_basis(
    statistics: Statistics, head: Head, *, dim: int | None, owner: str
) -> tuple[Float[Tensor, " features"], Float[Tensor, "features residual"]]:
    """Origin u = -W^+ b, and the eigenvectors of (1/N) sum (x-u)(x-u)' after the first `dim`, in float64.

    Raises:
        InvalidArgumentError: `dim` is not below the number of features.
    """
    moments = statistics[ClassMoments]
    width = moments.scatter.shape[0]
    size = default_dim(width) if dim is None else dim
    if size >= width:
        raise InvalidArgumentError(
            f"{owner}: the principal space has {size} dimensions but there are only {width} features;"
            + (f" use dim <= {width - 1}" if width > 1 else " at least 2 are needed")
        )

    def origin_of() -> Tensor:
        # The shortest of the nearest solutions of W u = -b, as the pseudo-inverse gives it. The CPU allows any rank.
        weight, bias = head.weight.double().cpu(), head.offset.double().cpu()
        unmasked = bias > -float("inf")  # a masked class, with a bias of minus infinity, has no equation
        weight, bias = weight[unmasked], bias[unmasked]
        # By singular values: the default of some versions of torch reads unwritten memory where rank is missing.
        solution = torch.linalg.lstsq(weight, -bias[:, None], driver="gelsd").solution
        origin: Tensor = solution[:, 0].to(moments.mean.device)
        return origin

    def vectors_of() -> Tensor:
        shift = moments.mean - origin
        second = moments.total_covariance + torch.outer(shift, shift)
        vectors: Tensor = torch.linalg.eigh(second).eigenvectors
        return vectors.flip(1)

    origin = statistics.memo("head_origin", origin_of)
    vectors = statistics.memo("vectors_around_head_origin", vectors_of)
    # One tensor for all detectors with this dimension: `residual_norms` recognises it.
    return origin, statistics.memo(("residual_basis", size), vectors[:, size:].contiguous)


def residual_norms(
    outputs: Outputs, origin: Float[Tensor, " features"], residual: Float[Tensor, "features residual"]
) -> Float[Tensor, " batch"]:
    """|R'(x - u)| in float64, computed once per batch for equal parameters."""

    def compute() -> Tensor:
        norms: Tensor = torch.linalg.vector_norm((outputs.require("features").double() - origin) @ residual, dim=1)
        return norms

    return outputs.memo(("residual_norms", memo_key(origin, residual)), compute)
