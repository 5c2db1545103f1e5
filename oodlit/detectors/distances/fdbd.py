"""Distances to the decision boundaries."""

from typing import final

import torch
from torch import Tensor

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.boundaries import inverse_distances, unmasked_gaps
from oodlit.detectors.statistics import FeatureMean, Statistics


@final
class FDBD(Detector):
    """S = sum over c != y of |z_y - z_c| / |w_y - w_c| / |x - mean|: y the prediction, mean over the training images.

    |w_i - w_j| is computed from the Gram matrix of the head with memory C x C. Classes with equal weights have no
    boundary and add nothing, and a note reports this. Masked classes (a logit of minus infinity) add nothing.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> head, detector = Head(torch.eye(2)), FDBD()
        >>> fit([detector], [Outputs(features=torch.zeros(1, 2))], head)
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> [round(s, 4) for s in detector.score(Outputs(head(x), x)).tolist()]  # 1 / sqrt(2) / 5
        [0.1414]
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (FeatureMean,)
    invariances = frozenset({"feature_rotation", "class_permutation"})
    display_name = "fDBD"
    reference = Reference(
        "Fast Decision Boundary based Out-of-Distribution Detector",
        "L. Liu and Y. Qin",
        "ICML",
        2024,
        "https://arxiv.org/abs/2312.11536",
        "distances are summed over classes instead of averaged, which only changes scores by a constant factor",
    )

    def _fit(self, statistics: Statistics, head: Head) -> None:
        inverse = inverse_distances(self, statistics, head)
        self.keep(inverse_distances=inverse, mean=statistics[FeatureMean].mean.clone())

    def _score(self, outputs: Outputs) -> Scores:
        distances = -(unmasked_gaps(outputs) * self.inverse_distances[outputs.predictions]).sum(dim=1)
        norms: Tensor = torch.linalg.vector_norm(outputs.require("features").double() - self.mean, dim=1)
        return distances / norms.clamp(min=1e-200)  # an image at the mean: far inside, but finite
