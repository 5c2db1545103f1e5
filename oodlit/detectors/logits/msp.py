"""Maximum softmax probability."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.softmax import odds_against


@final
class MSP(TrainFreeDetector):
    """S = log max_c softmax(z)_c, the logarithm of the maximum softmax probability.

    The logarithm preserves the order and does not saturate, whereas the softmax of confident images ties at 1.0 in
    float32. `exp` of the score is the probability.

    Example:
        >>> import torch
        >>> MSP().score(Outputs(torch.tensor([[0.0, 0.0], [30.0, 0.0], [40.0, 0.0]]))).exp()
        tensor([0.5000, 1.0000, 1.0000])
    """

    needs = frozenset({"logits"})
    log_probability = True
    invariances = frozenset({"logit_shift", "class_permutation"})
    reference = Reference(
        "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks",
        "D. Hendrycks and K. Gimpel",
        "ICLR",
        2017,
        "https://arxiv.org/abs/1610.02136",
        "the score is the logarithm of the probability, so that confident images do not tie",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return -odds_against(outputs).log1p()
