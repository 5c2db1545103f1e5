"""CADRef: distance to the mean of the predicted class, split into parts for and against the class."""

from dataclasses import replace
from typing import Literal, final

import torch

from oodlit.base.checks import check_choice
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.distances.ca_ref import CARef
from oodlit.detectors.formulas.predicted_means import PredictedMeanDetector
from oodlit.detectors.statistics import PredictedMeans, Statistics, TrainSample

LEAST_LEVEL = 0.1
"""Smallest mean of g in training that is used unchanged, relative to its excess over the median logit."""
LEAST_SHARE = 1e-3
"""Smallest g of an image, relative to the mean of g in training."""


@final
class CADRef(PredictedMeanDetector):
    """S = -(P / g(z) + N / mean g): P, N the parts of `CARef`'s |x - m|_1 / |x|_1 for and against the prediction.

    An entry of x - m raises the logit of the predicted class if it has the sign of the weight, and lowers it otherwise.
    g is a confidence; its mean is over a sample of the training images (all up to 50,000).

    g must be positive, but a constant in the bias, which does not affect the softmax, can make it small or
    negative. If the mean of g in training is less than 0.1 of the mean difference between g and the median
    logit of an image, this difference replaces g, and a note reports it. For a single image, g is at least 1e-3
    of its mean.

    Args:
        confidence: g: "energy" (default, LSE(z)), "max_logit" or "msp" (the largest softmax probability).

    Raises:
        InvalidArgumentError: `confidence` has another value.

    Example:
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
        >>> head, detector = Head(torch.eye(2)), CADRef(confidence="max_logit")
        >>> fit([detector], [Outputs(x, x)], head)
        >>> q = torch.tensor([[4.0, 1.0]])  # m = (3, 0): P = 1 / 5, N = 0
        >>> [round(s, 4) for s in detector.score(Outputs(q, q)).tolist()]
        [-0.05]
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (PredictedMeans, TrainSample)
    sample_fields = frozenset({"max_logits", "median_logits", "logsumexp"})
    invariances = frozenset({"class_permutation"})
    host_buffers = frozenset({"above_median"})  # on the CPU, where reading it does not wait for a GPU
    reference = replace(
        CARef.reference,
        deviations=(
            "the confidence g is kept positive, whereas the authors' g can be negative; confidence has no choice for"
            f" g = 1 / GEN, which the authors also use; {CARef.reference.deviations}"
        ),
    )

    def __init__(self, confidence: Literal["energy", "max_logit", "msp"] = "energy") -> None:
        super().__init__()
        check_choice("CADRef", "confidence", confidence, ("energy", "max_logit", "msp"))
        self.confidence = confidence

    def _fit(self, statistics: Statistics, head: Head) -> None:
        self._keep_means(statistics)
        level, above_median = self._level(statistics[TrainSample])
        self.keep(signs=head.weight.sign(), level=self.means.new_tensor(level), above_median=torch.tensor(above_median))

    def _level(self, sample: TrainSample) -> tuple[float, bool]:
        """Return the mean of g in training, and whether g counts from the median logit of the image."""
        largest, energy = (sample.of_logits(name, ordered=False).double() for name in ("max_logits", "logsumexp"))
        if self.confidence == "msp":
            return float((largest - energy).exp().mean()), False
        level = float((energy if self.confidence == "energy" else largest).mean())
        # Not the mean of the logits, which a single nearly masked class would dominate.
        excess = level - float(sample.of_logits("median_logits", ordered=False).double().mean())
        if level > 0 and level >= LEAST_LEVEL * excess:
            return level, False
        used, why = 1.0, "since it does not exceed the mean of the median logits"
        if excess > 1e-6 * abs(level):
            used, why = excess, "its excess over the mean of the median logits"
        self.note(
            f"the mean of confidence={self.confidence!r} over the training images ({level:.4g}) is too small to divide"
            f" distances by. It is replaced by {used:.4g}, {why}"
        )
        return used, True

    def _score(self, outputs: Outputs) -> Scores:
        errors = self._relative_errors(outputs) * self.signs[outputs.predictions]
        raising, lowering = errors.clamp(min=0).sum(dim=1), (-errors).clamp(min=0).sum(dim=1)
        return -(raising / self._confidence(outputs).clamp(min=LEAST_SHARE * self.level) + lowering / self.level)

    def _confidence(self, outputs: Outputs) -> Scores:
        if self.confidence == "msp":
            return outputs.max_probabilities.double()
        value = (outputs.logsumexp if self.confidence == "energy" else outputs.max_logits).double()
        return value if not self.above_median else value - outputs.median_logits.double()
