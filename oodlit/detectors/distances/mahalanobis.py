"""Mahalanobis distance to the nearest class mean."""

from typing import final

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.distances.mahalanobis_plus_plus import MahalanobisPlusPlus
from oodlit.detectors.formulas.gaussian import GaussianDetector
from oodlit.detectors.statistics import ClassMoments, Statistic, power_moments


@final
class Mahalanobis(GaussianDetector):
    """S = -min_c (x - mu_c)' Sigma^-1 (x - mu_c), Sigma = (1/N) sum_i (x_i - mu_y)(x_i - mu_y)'.

    Uses true labels, all training images and float64. Classes without images have no mean and are left out. Eigenvalues
    of Sigma are bounded at 1e-12 of the largest, so that a direction unused in training costs more than a used one.

    With `power` b, x is x / |x|^b in fit and scoring (D. Janiak, arXiv 2510.15202): 0 is the distance above, 1 that of
    `MahalanobisPlusPlus`, values between reduce the differences of norms. A zero feature vector stays zero.

    Args:
        power: b >= 0, default 0.

    Raises:
        InvalidArgumentError: `power` is negative or not finite.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> train = torch.tensor([[-1.0, -0.1], [1.0, 0.1], [-1.0, 0.1], [1.0, -0.1]])
        >>> detector = Mahalanobis()
        >>> fit([detector], [Outputs(features=train, labels=torch.zeros(4, dtype=torch.int64))])
        >>> [round(s, 4) for s in detector.score(Outputs(features=torch.tensor([[2.0, 0.0], [0.0, 1.0]]))).tolist()]
        [-4.0, -100.0]
    """

    statistics: tuple[type[Statistic], ...] = (ClassMoments,)
    invariances = frozenset({"feature_affine", "class_permutation", "mean_is_best"})
    reference = Reference(
        "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks",
        "K. Lee",
        "NeurIPS",
        2018,
        "https://arxiv.org/abs/1807.03888",
        "uses penultimate features, as in the NINCO evaluation; the paper perturbs inputs and combines several layers",
    )

    def __init__(self, power: float = 0.0) -> None:
        super().__init__()
        check_positive("Mahalanobis", power=power, or_zero=True)
        self.power = power
        self.moments = power_moments(float(power))
        self.statistics = (self.moments,)
        if power:
            self.invariances = MahalanobisPlusPlus.invariances

    def _score(self, outputs: Outputs) -> Scores:
        return -self._nearest(outputs)
