"""Largest softmax of the cosines with the text embeddings."""

from typing import ClassVar, final

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.concepts import ConceptDetector
from oodlit.detectors.formulas.softmax import log_max_probability


@final
class MCM(ConceptDetector):
    """S = log max_c softmax_c(cos(x, t_c) / T): t_c row c of the head, the text embedding of class c.

    `exp` of the score is the probability of the authors. `RelativeCosine.preset("mcm")` has the same scores.

    Args:
        temperature: T > 0, default 1.

    Raises:
        InvalidArgumentError: `temperature` is not a positive, finite number.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> from oodlit.outputs import Head
        >>> detector = MCM()
        >>> fit([detector], [], Head(torch.eye(2)))
        >>> round(float(detector.score(Outputs(features=torch.tensor([[5.0, 0.0]]))).exp()), 4)  # sigmoid(1)
        0.7311
    """

    needs = frozenset({"features", "head"})
    statistics = ()
    log_probability = True
    same_order_as: ClassVar = {"relative_cosine": "with concepts='head', RelativeCosine is MCM"}
    reference = Reference(
        "Delving into Out-of-Distribution Detection with Vision-Language Representations",
        "Y. Ming",
        "NeurIPS",
        2022,
        "https://arxiv.org/abs/2211.13445",
        "the score is the logarithm of the probability",
    )

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__("head")
        check_positive("MCM", temperature=temperature)
        self.temperature = temperature

    def _score(self, outputs: Outputs) -> Scores:
        return log_max_probability(self._cosines(outputs) / self.temperature)
