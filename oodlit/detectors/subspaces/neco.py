"""NECO: the fraction of a feature vector inside the principal space of the training features."""

from typing import ClassVar, final

import torch
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.principal_axes import axes_by_share, check_share, first_axes
from oodlit.detectors.formulas.residual_space import below_width
from oodlit.detectors.statistics import ClassMoments, Statistics

CONSTANT = 1e-24
"""Largest variance of a feature that may be rounding error, relative to the square of its mean."""


@final
class NECO(Detector):
    """S = max z * |P h| / |h|, h = (x - mean) / std per feature; P the projection on the first principal axes of h.

    A feature that is constant in training has std 1. With h = 0, the fraction |P h| / |h| is 1. If max z is
    negative, a larger fraction would lower the score. Then S = max z * (2 - |P h| / |h|), which is continuous
    at max z = 0.

    The authors choose the dimension, and whether to multiply by max z, for each network. The default
    multiplies, as the authors do for transformers. To follow the authors, use the preset `resnet` for a ResNet,
    and set `dim`.

    Args:
        variance: Fraction of the variance that the axes reach, between 0 and 1, default 0.7. It replaces a dimension
            that the authors set by hand for every network.
        dim: Number of axes, below the number of features; None (default) = by `variance`.
        max_logit: Whether to multiply by the largest logit, default True; the authors omit it for ResNets.

    Raises:
        InvalidArgumentError: An argument is out of range, or during the fit `dim` is not below the number of features.

    Example:
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[1.0, 1.1], [-1.0, -1.1], [2.0, 1.9], [-2.0, -1.9]])
        >>> detector = NECO(dim=1, max_logit=False)
        >>> fit([detector], [Outputs(features=x, labels=torch.zeros(4, dtype=torch.int64))])
        >>> [round(s, 2) for s in detector.score(Outputs(features=torch.tensor([[3.0, 3.0], [1.0, -1.0]]))).tolist()]
        [1.0, 0.01]
    """

    needs = frozenset({"logits", "features"})
    statistics = (ClassMoments,)
    requirements = (below_width,)
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {"resnet": {"max_logit": False}}
    reference = Reference(
        "NECO: NEural Collapse Based Out-of-distribution detection",
        "M. Ben Ammar",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2310.06823",
        "the number of axes follows from a fraction of the variance, whereas the authors set it by hand for"
        " every network; the score is divided by the norm of the standardized features for all networks, whereas the"
        " authors' code divides by the norm of the features themselves for DeiT and Swin; if the largest logit is"
        " negative, the order of scores is kept, whereas the authors' product reverses it",
    )

    def __init__(self, variance: float = 0.7, dim: int | None = None, *, max_logit: bool = True) -> None:
        super().__init__()
        check_ints("NECO", dim=dim, optional=True)
        self.variance = check_share("NECO", "variance", variance)
        check_choice("NECO", "max_logit", max_logit, (True, False))
        self.dim, self.max_logit = dim, max_logit
        if not max_logit:
            self.needs = frozenset({"features"})

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        moments = statistics[ClassMoments]
        mean, variances = moments.mean, moments.variances
        if self.dim is not None and self.dim >= len(mean):
            raise InvalidArgumentError(
                f"{self!r}: dim={self.dim}, but there are only {len(mean)} features; use a smaller dim"
            )
        constant = variances <= CONSTANT * mean.square()
        scale = variances.sqrt().where(~constant, torch.ones_like(variances))
        correlations = moments.total_covariance / scale / scale[:, None]
        if self.dim is None:
            axes, _ = axes_by_share(correlations, self.variance)
        else:
            axes = first_axes(correlations, self.dim)
        self.note_setting("dim", axes.shape[1], f"{100 * self.variance:g} % of the variance")
        if not axes.shape[1]:
            self.note("the training features are all equal, so there is no principal space to compare images with")
        self.keep(mean=mean, scale=scale, axes=axes)

    def _score(self, outputs: Outputs) -> Scores:
        h = (outputs.require("features").double() - self.mean) / self.scale
        norms: Tensor = torch.linalg.vector_norm(h, dim=1)
        inside: Tensor = torch.linalg.vector_norm(h @ self.axes, dim=1)
        share = (inside / norms).where(norms > 0, torch.ones_like(norms))
        if not self.max_logit:
            return share
        top = outputs.max_logits.double()
        return top * share.where(top >= 0, 2 - share)
