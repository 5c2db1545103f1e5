"""DICE: keep only the weights of the head that contribute most."""

from typing import ClassVar, final

from oodlit.base.outputs import Features, Head
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.percentile import check_percentile, percentile
from oodlit.detectors.formulas.shaping import Shaped, Shaping
from oodlit.detectors.statistics import FeatureMean, Statistics


@final
class DICE(Shaping):
    """S = `then` on the logits (M * W) x + b; M keeps the weights whose contribution V = W * mean(x) is large.

    V is the elementwise product with the mean training feature; M is 1 where V exceeds its percentile p over all
    entries.

    Args:
        percentile: p in percent, 0 or from 1 to 100, default 70 (ImageNet).
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    DICE on clipped activations is `ReAct(threshold=1.0, then=DICE(percentile=10.0))`, `ReAct.preset("dice")`.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import MaxLogit, fit
        >>> from oodlit.outputs import Outputs
        >>> detector, head = DICE(percentile=50.0, then=MaxLogit()), Head(torch.tensor([[3.0, 1.0], [2.0, 0.0]]))
        >>> x = torch.tensor([[1.0, 1.0]])
        >>> fit([detector], [Outputs(head(x), x)], head)
        >>> detector.score(Outputs(head(x), x))  # 1 and 0 are cut from the head
        tensor([3.])
    """

    statistics = (FeatureMean,)
    presets: ClassVar = {"imagenet": {"percentile": 70.0}, "cifar": {"percentile": 90.0}}
    reference = Reference(
        "DICE: Leveraging Sparsification for Out-of-Distribution Detection",
        "Y. Sun and Y. Li",
        "ECCV",
        2022,
        "https://arxiv.org/abs/2111.09805",
    )

    def __init__(self, percentile: float = 70.0, then: GivenDetector = None) -> None:
        super().__init__(then)
        self.percentile = check_percentile("DICE", percentile)

    def _prepare(self, statistics: Statistics, head: Head) -> None:
        contribution = head.weight.double() * statistics[FeatureMean].mean.to(head.weight.device)
        is_class = head.offset > -float("inf")  # masked classes contribute nothing
        kept = contribution > percentile(contribution[is_class], self.percentile)
        self.keep(weight=head.weight * kept)

    def _shape(self, features: Features) -> Shaped:
        return features, None
