"""ReAct: clip activations."""

import math
from typing import ClassVar, final

import torch

from oodlit.base.checks import number_of
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Features, Head
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.percentile import check_percentile, feature_percentile
from oodlit.detectors.formulas.shaping import Shaped, Shaping
from oodlit.detectors.statistics import Statistic, Statistics, TrainSample


@final
class ReAct(Shaping):
    """S = `then` on the logits W min(x, c) + b; c a percentile of all activations of the training images pooled.

    The percentile is exact over a sample of at most 50,000 training images, or all if there are fewer.

    Args:
        percentile: In percent, 0 or from 1 to 100, default 99.
        threshold: c itself, which requires no training images; None (default) = the percentile.
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`. May be another reshaping,
            such as `DICE()`.

    The preset "p90-val" is the percentile of the paper, which is over held-out ID images: to follow it, call
        `oodlit.detectors.fit` with outputs of such images; a run uses the training images.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> from oodlit.detectors import MSP, fit
        >>> from oodlit.outputs import Outputs
        >>> detector, head = ReAct(percentile=100.0, then=MSP()), Head(torch.eye(2))
        >>> train, test = torch.tensor([[0.0, 3.0]]), torch.tensor([[5.0, 2.0]])
        >>> fit([detector], [Outputs(head(train), train)], head)
        >>> detector.score(Outputs(head(test), test)).exp()  # of the logits (3, 2)
        tensor([0.7311])
    """

    assumes_non_negative = True
    statistics: tuple[type[Statistic], ...] = (TrainSample,)
    presets: ClassVar = {
        "p99-train": {"percentile": 99.0},
        "p90-val": {"percentile": 90.0},
        "dice": {
            "threshold": 1.0,
            "then": {"class_path": "oodlit.detectors.shaping.dice.DICE", "init_args": {"percentile": 10.0}},
        },
    }
    reference = Reference(
        "ReAct: Out-of-distribution Detection With Rectified Activations",
        "Y. Sun",
        "NeurIPS",
        2021,
        "https://arxiv.org/abs/2111.12797",
        "the default threshold is the 99th percentile, as in the NINCO and ViM evaluations; the authors use the 90th",
    )

    def __init__(self, percentile: float = 99.0, threshold: float | None = None, then: GivenDetector = None) -> None:
        super().__init__(then)
        if threshold is not None and math.isnan(number_of(threshold)):
            raise InvalidArgumentError(
                f"ReAct: expected threshold to be a number, or None for the percentile; got {threshold!r}"
            )
        self.percentile = check_percentile("ReAct", percentile)
        self.threshold = threshold
        self.statistics = (TrainSample,) if threshold is None else ()

    def _prepare(self, statistics: Statistics, head: Head) -> None:
        clip = self.threshold
        if clip is None:
            self._note_negative(statistics)
            clip = feature_percentile(statistics, self.percentile)
        self.keep(clip=torch.tensor(clip, dtype=torch.float64, device=head.weight.device))

    def _shape(self, features: Features) -> Shaped:
        return features.clamp(max=self.clip.to(features.dtype)), None
