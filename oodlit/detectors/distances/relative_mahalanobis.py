"""Relative Mahalanobis distance."""

from typing import final

from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.gaussian import class_distances, class_gaussians, squared_norms, total_whitening
from oodlit.detectors.statistics import ClassMoments, Statistics
from oodlit.outputs import Head, Outputs, Scores


@final
class RelativeMahalanobis(Detector):
    """S = -(min_c d_c - d_0): d_c as in `Mahalanobis`, d_0 with the global mean and the total covariance.

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

    needs = frozenset({"features"})
    statistics = (ClassMoments,)
    invariances = frozenset({"feature_affine", "class_permutation"})
    reference = Reference(
        "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection",
        "J. Ren",
        "ICML workshop on uncertainty and robustness in deep learning",
        2021,
        "https://arxiv.org/abs/2106.09022",
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        for name, value in class_gaussians(statistics).items():
            self.register_buffer(name, value)
        self.register_buffer("whiten_total", total_whitening(statistics))

    def _score(self, outputs: Outputs) -> Scores:
        nearest = class_distances(outputs, self.origin, self.whiten, self.whitened_means, self.class_means).amin(dim=1)
        return squared_norms(outputs, self.origin, self.whiten_total) - nearest
