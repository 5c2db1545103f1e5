"""Relative Mahalanobis distance of unit features."""

from typing import final

from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.gaussian import class_distances, class_gaussians, squared_norms, total_whitening
from oodlit.detectors.statistics import Statistics, UnitMoments
from oodlit.outputs import Head, Outputs, Scores


@final
class RelativeMahalanobisPlusPlus(Detector):
    """S = -(min_c d_c - d_0) of the unit features x / |x|: d_c as in `MahalanobisPlusPlus`, d_0 with the total moments.

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
        self.register_buffer("whiten_total", total_whitening(statistics, UnitMoments))

    def _score(self, outputs: Outputs) -> Scores:
        parameters = (self.origin, self.whiten, self.whitened_means, self.class_means)
        nearest = class_distances(outputs, *parameters, UnitMoments).amin(dim=1)
        return squared_norms(outputs, self.origin, self.whiten_total, UnitMoments) - nearest
