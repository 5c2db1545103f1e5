"""SCALE: scale features by how peaked they are."""

from typing import ClassVar, final

import torch

from oodlit.base.outputs import Features
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.percentile import check_percentile
from oodlit.detectors.formulas.shaping import Shaped, Shaping, check_non_negative, non_negative_features, num_kept


@final
class SCALE(Shaping):
    """S = `then` on the logits of x exp(s1 / s2): s1 the sum of x, s2 that of its D - round(D p / 100) largest entries.

    Nothing is pruned; s2 has at least one entry. Features must not be negative.

    Args:
        percentile: p in percent, 0 or from 1 to 100, default 85.
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    Raises:
        InvalidArgumentError: An argument is out of range.
        RequirementError: During scoring, a feature is negative.

    Example:
        >>> from oodlit.detectors import MaxLogit, fit
        >>> from oodlit.outputs import Head, Outputs
        >>> detector, head = SCALE(percentile=50.0, then=MaxLogit()), Head(torch.eye(2))
        >>> fit([detector], [], head)
        >>> x = torch.tensor([[1.0, 1.0]])
        >>> detector.score(Outputs(head(x), x))  # exp(2 / 1)
        tensor([7.3891], dtype=torch.float64)
    """

    assumes_non_negative = True
    requirements = (non_negative_features,)
    presets: ClassVar = {"p85": {"percentile": 85.0}}
    reference = Reference(
        "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement",
        "K. Xu",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2310.00227",
        "only the post-hoc score of the paper, without its training method",
    )

    def __init__(self, percentile: float = 85.0, then: GivenDetector = None) -> None:
        super().__init__(then)
        self.percentile = check_percentile("SCALE", percentile)

    def _shape(self, features: Features) -> Shaped:
        check_non_negative(self, features)
        k = num_kept(features.shape[1], self.percentile)
        largest = features.topk(k, dim=1, sorted=False).values.sum(dim=1, dtype=torch.float64)
        return features, features.sum(dim=1, dtype=torch.float64) / largest.where(largest > 0, torch.ones_like(largest))
