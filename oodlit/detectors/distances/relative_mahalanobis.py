"""Relative Mahalanobis distance."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.gaussian import GaussianDetector
from oodlit.detectors.statistics import ClassMoments


@final
class RelativeMahalanobis(GaussianDetector):
    """S = -(min_c d_c - d_0): d_c as in `Mahalanobis`, d_0 with the global mean and the total covariance.

    Both distances use the same whitening, with the same bound on its eigenvalues. Along an axis in which all
    class means are equal, both distances are equal and cancel. Only the other axes are kept, at most classes -
    1. Directions without variation in training cancel, too, and a note states their number.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> train = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
        >>> detector = RelativeMahalanobis()
        >>> fit([detector], [Outputs(features=train, labels=torch.tensor([0, 0, 1, 1]))])
        >>> near, far = detector.score(Outputs(features=torch.tensor([[0.0, 1.0], [2.0, 9.0]])))
        >>> bool(near > far)
        True
    """

    statistics = (ClassMoments,)
    is_relative = True
    invariances = frozenset({"feature_affine", "class_permutation"})
    display_name = "Relative Mahalanobis"
    reference = Reference(
        "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection",
        "J. Ren",
        "ICML workshop on uncertainty and robustness in deep learning",
        2021,
        "https://arxiv.org/abs/2106.09022",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return self._from_mean(outputs) - self._nearest(outputs)
