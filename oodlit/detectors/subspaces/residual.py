"""Norm of the component outside the principal space of the training features."""

from typing import final

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.residual_space import ResidualDetector
from oodlit.detectors.statistics import ClassMoments, Statistics


@final
class Residual(ResidualDetector):
    """S = -|R'(x - u)|, u = -W^+ b; R the eigenvectors of (1/N) sum (x-u)(x-u)' after the first `dim`.

    Args:
        dim: Dimension of the principal space, 1 <= dim < features. None (default) = chosen by the width D: 1000 if D >=
            2048, 512 if D >= 768, else D/2.

    Raises:
        InvalidArgumentError: `dim` is below 1 or, during the fit, not below the number of features.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[3.0, 0.1], [-3.0, 0.1], [3.0, -0.1], [-3.0, -0.1]])
        >>> detector = Residual(dim=1)
        >>> fit([detector], [Outputs(features=x, labels=torch.zeros(4, dtype=torch.int64))], Head(torch.eye(2)))
        >>> detector.score(Outputs(features=torch.tensor([[9.0, 0.5]]))).tolist()
        [-0.5]
    """

    needs = frozenset({"features", "head"})
    statistics = (ClassMoments,)
    invariances = frozenset({"class_permutation", "feature_rotation", "larger_residual_is_worse"})
    reference = Reference(
        "ViM: Out-Of-Distribution with Virtual-logit Matching",
        "H. Wang",
        "CVPR",
        2022,
        "https://arxiv.org/abs/2203.10807",
    )

    def _fit(self, statistics: Statistics, head: Head) -> None:
        self._keep_space(statistics, head)

    def _score(self, outputs: Outputs) -> Scores:
        return -self._residual_norms(outputs)
