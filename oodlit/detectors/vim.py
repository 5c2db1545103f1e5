"""Virtual-logit matching."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.checks import check_int
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.formulas.residual_space import residual_basis, residual_norms
from oodlit.detectors.statistics import ClassMoments, Statistics, TrainSample
from oodlit.outputs import Head, Outputs

__all__ = ["ViM"]


@final
class ViM(Detector):
    """S = LSE(z) - alpha * |R'(x - u)|, u = -W^+ b: energy minus a virtual logit made of the residual.

    R spans what the first `dim` eigenvectors of (1/N) sum (x-u)(x-u)' leave over; alpha = mean(max_c z) /
    mean(|R'(x-u)|) over a sample of the training images (all of them up to 50 000). Where alpha would be negative (mean
    of the largest logits below zero) its absolute value is used, so that a larger residual always lowers the score.

    Args:
        dim: Dimension of the principal space, 1 <= dim < features. None (default) goes by the width D: 1000 if
            D >= 2048, 512 if D >= 768, else D/2.

    Raises:
        InvalidArgumentError: `dim` is below 1 or, at fit, not below the number of features.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> noise = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> x = noise * torch.tensor([3.0, 3.0, 3.0, 0.1, 0.1, 0.1])
        >>> head = Head(torch.eye(3, 6))
        >>> detector = ViM(dim=3)
        >>> fit([detector], [Outputs(head(x), x, torch.zeros(200, dtype=torch.int64))], head)
        >>> probe = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1.0, 1, 1, 0, 0, 5]])
        >>> inside, outside = detector.score(Outputs(head(probe), probe))
        >>> bool(inside > outside)
        True
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (ClassMoments, TrainSample)
    sample_fields = frozenset({"features", "max_logits"})
    invariances = frozenset({"class_permutation", "larger_residual_is_worse"})
    reference = Reference(
        "ViM: Out-Of-Distribution with Virtual-logit Matching",
        "H. Wang",
        "CVPR",
        2022,
        "https://arxiv.org/abs/2203.10807",
        "the logarithm of the authors' softmax form: same order up to a monotone map",
    )
    origin: Tensor
    residual: Tensor
    alpha: Tensor

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        check_int("ViM", "dim", dim, optional=True)
        self.dim = dim

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        assert head is not None  # checked by `fit`
        origin, residual = residual_basis(statistics, head, dim=self.dim, owner=repr(self))
        sample = statistics[TrainSample]
        mean_norm = origin.new_zeros(())
        for rows in torch.split(sample.column("features", ordered=False), 1024):  # in parts: float64 is twice the size
            part = Outputs(features=rows.to(origin.device))
            mean_norm = mean_norm + residual_norms(part, origin, residual).sum()
        mean_logit = sample.of_logits("max_logits", ordered=False).sum(dtype=torch.float64).to(origin.device)
        # Training images without any residual leave alpha undefined; 1 then keeps "more residual is worse".
        alpha = (mean_logit / mean_norm).abs() if mean_norm > 0 else mean_norm.new_ones(())
        self.register_buffer("origin", origin)
        self.register_buffer("residual", residual)
        self.register_buffer("alpha", alpha)

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        return outputs.logsumexp - self.alpha * residual_norms(outputs, self.origin, self.residual)
