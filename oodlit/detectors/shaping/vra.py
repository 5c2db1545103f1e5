"""VRA: cut activations at both ends."""

from typing import ClassVar, final

import torch

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Features, Head
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.percentile import check_percentile, feature_percentile
from oodlit.detectors.formulas.shaping import Shaped, Shaping
from oodlit.detectors.statistics import Statistics, TrainSample


@final
class VRA(Shaping):
    """S = `then` on the logits of x': x' = 0 if x < a, b if x > b, x otherwise; a and b percentiles.

    Percentiles are over all activations of the training images pooled, exact over a sample of at most 50,000 images.

    Args:
        low: Percentile below which activations become zero, default 1.
        high: Percentile at which they are capped, low < high <= 100, default 99.
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> VRA(low=60.0, high=95.0)
        VRA(low=60.0, high=95.0)
    """

    assumes_non_negative = True
    same_order_as: ClassVar = {
        "react": ("features after a ReLU have no low values to cut, so only the upper cut remains, as in ReAct")
    }
    statistics = (TrainSample,)
    presets: ClassVar = {"p1-p99": {"low": 1.0, "high": 99.0}, "p60-p95": {"low": 60.0, "high": 95.0}}
    reference = Reference(
        "VRA: Variational Rectified Activation for Out-of-distribution Detection",
        "M. Xu",
        "NeurIPS",
        2023,
        "https://arxiv.org/abs/2302.11716",
        "the 1st and 99th percentiles are the default; the preset p60-p95 has the percentiles of the paper",
    )

    def __init__(self, low: float = 1.0, high: float = 99.0, then: GivenDetector = None) -> None:
        super().__init__(then)
        self.low = check_percentile("VRA", low, small=True)
        self.high = check_percentile("VRA", high)
        if self.low >= self.high:
            raise InvalidArgumentError(f"VRA: expected low < high, got low={low}, high={high}")

    def _prepare(self, statistics: Statistics, head: Head) -> None:
        self._note_negative(statistics)
        ends = [feature_percentile(statistics, percent) for percent in (self.low, self.high)]
        floor, cap = torch.tensor(ends, dtype=torch.float64, device=head.weight.device)
        self.keep(floor=floor, cap=cap)

    def _shape(self, features: Features) -> Shaped:
        floor, cap = self.floor.to(features.dtype), self.cap.to(features.dtype)
        # Multiply by ones and zeros: selecting with a boolean mask takes ten times as long on a CPU.
        kept = torch.ge(features, floor, out=torch.empty_like(features))
        return kept.mul_(features).clamp_(max=cap), None
