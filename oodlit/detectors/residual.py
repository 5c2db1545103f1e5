"""Norm of what lies outside the principal space of the training features."""

from typing import final

from oodlit.checks import check_int
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.residual_space import below_width, residual_norms, residual_space
from oodlit.detectors.statistics import ClassMoments, Statistics
from oodlit.outputs import Head, Outputs, Scores


@final
class Residual(Detector):
    """S = -|R'(x - u)|, u = -W^+ b; R the eigenvectors of (1/N) sum (x-u)(x-u)' after the first `dim`.

    Args:
        dim: Dimension of the principal space, 1 <= dim < features. None (default) goes by the width D: 1000 if
            D >= 2048, 512 if D >= 768, else D/2.

    Raises:
        InvalidArgumentError: `dim` is below 1 or, at fit, not below the number of features.

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
    requirements = (below_width,)
    invariances = frozenset({"class_permutation", "feature_rotation", "larger_residual_is_worse"})
    reference = Reference(
        "ViM: Out-Of-Distribution with Virtual-logit Matching",
        "H. Wang",
        "CVPR",
        2022,
        "https://arxiv.org/abs/2203.10807",
    )

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        check_int("Residual", "dim", dim, optional=True)
        self.dim = dim

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        assert head is not None  # checked by `fit`
        space = residual_space(statistics, head, dim=self.dim, owner=repr(self))
        if space.note:
            self.note(space.note)
        self.register_buffer("origin", space.origin)
        self.register_buffer("residual", space.basis)

    def _score(self, outputs: Outputs) -> Scores:
        return -residual_norms(outputs, self.origin, self.residual)
