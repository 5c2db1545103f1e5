"""Relative Mahalanobis distance of unit features."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.distances.mahalanobis_plus_plus import MahalanobisPlusPlus
from oodlit.detectors.formulas.gaussian import GaussianDetector
from oodlit.detectors.statistics import UnitMoments


@final
class RelativeMahalanobisPlusPlus(GaussianDetector):
    """S = -(min_c d_c - d_0) of the unit features x / |x|: d_c as in `MahalanobisPlusPlus`, d_0 with the total moments.

    Both distances use the same whitening, with the same bound on its eigenvalues. Along an axis in which all
    class means are equal, both distances are equal and cancel. Only the other axes are kept, at most classes -
    1. Directions without variation in training cancel, too, and a note states their number.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> train = torch.tensor([[1.0, 9.0], [2.0, 9.0], [9.0, 1.0], [9.0, 2.0]])
        >>> detector = RelativeMahalanobisPlusPlus()
        >>> fit([detector], [Outputs(features=train, labels=torch.tensor([0, 0, 1, 1]))])
        >>> near, far = detector.score(Outputs(features=torch.tensor([[3.0, 16.0], [5.0, 5.0]])))
        >>> bool(near > far)
        True
    """

    statistics = (UnitMoments,)
    moments = UnitMoments
    is_relative = True
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation"})
    display_name = "Relative Mahalanobis++"
    reference = MahalanobisPlusPlus.reference

    def _score(self, outputs: Outputs) -> Scores:
        return self._from_mean(outputs) - self._nearest(outputs)
