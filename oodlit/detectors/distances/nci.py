"""Closeness to the weight vector of the predicted class (neural collapse)."""

from typing import final

import torch
from torch import Tensor

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.statistics import FeatureMean, Statistics


@final
class NCI(Detector):
    """S = w_y . (x - mean) / |x - mean| + a |x|_1: y the prediction, mean over the training images.

    Args:
        alpha: a, finite, >= 0, default 1e-4.

    Raises:
        InvalidArgumentError: `alpha` is out of range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> head, detector = Head(torch.eye(2)), NCI(alpha=0.01)
        >>> fit([detector], [Outputs(features=torch.zeros(1, 2))], head)
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> [round(s, 4) for s in detector.score(Outputs(head(x), x)).tolist()]  # 4 / 5 + 0.01 * 7
        [0.87]
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (FeatureMean,)
    invariances = frozenset({"class_permutation"})
    reference = Reference(
        "Detecting Out-of-Distribution Through the Lens of Neural Collapse",
        "L. Liu and Y. Qin",
        "CVPR",
        2025,
        "https://arxiv.org/abs/2311.01479",
    )

    def __init__(self, alpha: float = 1e-4) -> None:
        super().__init__()
        check_positive("NCI", alpha=alpha, or_zero=True)
        self.alpha = alpha

    def _fit(self, statistics: Statistics, head: Head) -> None:
        self.keep(weight=head.weight.clone(), mean=statistics[FeatureMean].mean.clone())

    def _score(self, outputs: Outputs) -> Scores:
        features = outputs.require("features")
        centered = features.double() - self.mean
        norms: Tensor = torch.linalg.vector_norm(centered, dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        closeness = (self.weight[outputs.predictions] * centered).sum(dim=1) / norms
        return closeness + self.alpha * features.abs().sum(dim=1, dtype=torch.float64)
