"""SIRC: softmax confidence, augmented where a second score is unusually low."""

from typing import final

import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError, RequirementError
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.contract.registry import as_detector
from oodlit.detectors.formulas.combination import PRESERVED, Combination
from oodlit.detectors.logits.entropy import Entropy
from oodlit.detectors.logits.msp import MSP
from oodlit.detectors.statistics import Statistics, TrainSample


@final
class SIRC(Combination):
    """S = -log(m - S1) - log(1 + exp(-b (S2 - a))), m the largest value of S1; a = mean - 3 sd, b = 1 / sd of S2.

    Mean and standard deviation are those of a sample of the training images. S1 is a confidence from the softmax: the
    probability of a detector whose score is its logarithm (m = 1), or `Entropy` (m = 0). S2 adds information that the
    softmax does not have: it lowers the score of images with an unusually low S2, and images with a usual S2 keep
    the order of S1. With KNN as S2, mean and standard deviation are too high, because its bank contains the training
    images.

    m - S1 is at least the smallest positive number, so that scores are finite.

    Args:
        s1: `MSP`, another detector of log probabilities, `Entropy`, or the name of one; None (default) = `MSP()`.
        s2: A detector or its name, such as `Residual()` or "KNN"; None (default) = the sum of the absolute features.
        size: Largest number of training images for a and b, default 50,000, which is also the most; chosen by the hash
            of their keys.

    Raises:
        InvalidArgumentError: An argument is out of range, `s1` has no known largest value, or a detector reads more
            than logits and features.
        NotFittedError: `s1` or `s2` was fitted after this detector.
        RequirementError: During the fit, all training images have the same S2.

    Example:
        >>> from oodlit.detectors import fit
        >>> detector = SIRC()
        >>> train = Outputs(torch.zeros(2, 2), torch.tensor([[4.0, 0.0], [3.0, 3.0]]))  # S2: 4, 6; a = 2, b = 1
        >>> fit([detector], [train])
        >>> z = torch.zeros(2, 2)  # S1 = 1/2
        >>> [round(s, 4) for s in detector.score(Outputs(z, torch.tensor([[5.0, 0.0], [0.0, 0.0]]))).tolist()]
        [0.6446, -1.4338]
    """

    needs = frozenset({"features", "logits"})  # of the default settings
    statistics = (TrainSample,)
    reference = Reference(
        "Augmenting Softmax Information for Selective Classification with Out-of-Distribution Data",
        "G. Xia and C.-S. Bouganis",
        "ACCV",
        2022,
        "https://arxiv.org/abs/2207.07506",
        "with KNN as S2, the distance is used, whereas the authors square it; scores stay finite where the"
        " softmax rounds to 1, unlike in the authors' code; a and b are computed from at most 50,000 training images,"
        " whereas the authors use 250,000",
    )

    def __init__(
        self, s1: GivenDetector = None, s2: GivenDetector = None, size: int = TrainSample.default_rows
    ) -> None:
        own, second = (as_detector(s, "detector in SIRC") for s in (s1, s2))
        first = MSP() if own is None else own
        super().__init__([first] if second is None else [first, second], size)
        self._check_recorded("use other detectors")
        if not (first.log_probability or isinstance(first, Entropy)):
            raise InvalidArgumentError(
                f"SIRC: expected s1 to be MSP(), Entropy() or a detector of log probabilities, got {s1!r}"
            )
        self.needs = frozenset({"features"} if s2 is None else ())
        if s2 is None:
            self.invariances = first.invariances & PRESERVED - {"feature_affine", "feature_rotation"}
        self.s1, self.s2 = own, second

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        if self.s2 is None:
            values = _norms(statistics[TrainSample].column("features")[: self.size])
        else:
            values = self._score_sample(self.s2, statistics, head)
        mean, deviation = values.mean(), values.std(correction=0)
        if not 0 < deviation < float("inf"):
            name = "the sum of the absolute features" if self.s2 is None else repr(self.s2)
            raise RequirementError(
                f"{self!r}: expected s2 to have a positive, finite standard deviation over {len(values)} training"
                f" images, got {float(deviation)} for {name}; choose another s2, or fit on more images"
            )
        self.keep(a=mean - 3 * deviation, b=1 / deviation)
        self._check_parts()

    def _score(self, outputs: Outputs) -> Scores:
        self._check_parts()
        first = self.nested_detectors()[0]
        s1 = self._score_part(first, outputs)
        s2 = _norms(outputs.require("features")) if self.s2 is None else self._score_part(self.s2, outputs)
        distance = -torch.expm1(s1) if first.log_probability else -s1
        excess = -self.b * (s2 - self.a)
        # log(1 + exp(excess)) without overflow
        penalty = excess.clamp(min=0) + (-excess.abs()).exp().log1p()
        return -distance.clamp(min=torch.finfo(torch.float64).tiny).log() - penalty


def _norms(features: Tensor) -> Scores:
    """Return the sum of the absolute features, float64."""
    return features.double().abs().sum(dim=1)
