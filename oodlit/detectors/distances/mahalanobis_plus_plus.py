"""Mahalanobis distance of unit features to the nearest class mean."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.gaussian import GaussianDetector
from oodlit.detectors.statistics import UnitMoments


@final
class MahalanobisPlusPlus(GaussianDetector):
    """S = -min_c d_c of the unit features x / |x|, with means and covariance of the unit training features.

    d_c is as in `Mahalanobis`. This removes the norm of the features, which differs much between classes in many
    networks. A zero feature vector has no direction and stays zero, in fit and scoring.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> train = torch.tensor([[3.0, 4.0], [8.0, 6.0], [0.6, 0.8], [4.0, 3.0]])
        >>> detector = MahalanobisPlusPlus()
        >>> fit([detector], [Outputs(features=train, labels=torch.zeros(4, dtype=torch.int64))])
        >>> near, longer, far = detector.score(Outputs(features=torch.tensor([[1.0, 1.0], [9.0, 9.0], [1.0, -1.0]])))
        >>> bool(near == longer), bool(near > far)
        (True, True)
    """

    statistics = (UnitMoments,)
    moments = UnitMoments
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation"})
    display_name = "Mahalanobis++"
    reference = Reference(
        "Mahalanobis++: Improving OOD Detection via Feature Normalization",
        "M. Mueller and M. Hein",
        "ICML",
        2025,
        "https://arxiv.org/abs/2505.18032",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return -self._nearest(outputs)
