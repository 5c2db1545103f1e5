"""Mahalanobis distance of unit features to the nearest class mean."""

from typing import final

from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.gaussian import class_distances, class_gaussians
from oodlit.detectors.statistics import Statistics, UnitMoments
from oodlit.outputs import Head, Outputs, Scores


@final
class MahalanobisPlusPlus(Detector):
    """S = -min_c d_c of the unit features x / |x|: means and covariance, too, are those of unit training features.

    d_c as in `Mahalanobis`. The norm of an image, which differs much between classes in many networks, counts no more.
    A feature vector of zeros has no direction and stays zero, in training and in scoring.

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

    needs = frozenset({"features"})
    statistics = (UnitMoments,)
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation"})
    reference = Reference(
        "Mahalanobis++: Improving OOD Detection via Feature Normalization",
        "M. Mueller and M. Hein",
        "ICML",
        2025,
        "https://arxiv.org/abs/2505.18032",
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        for name, value in class_gaussians(statistics, UnitMoments).items():
            self.register_buffer(name, value)

    def _score(self, outputs: Outputs) -> Scores:
        parameters = (self.origin, self.whiten, self.whitened_means, self.class_means)
        return -class_distances(outputs, *parameters, UnitMoments).amin(dim=1)
