"""Softmax over the cosines with the class directions."""

from dataclasses import replace
from typing import ClassVar, final

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.distances.cosine import Cosine
from oodlit.detectors.formulas.concepts import ConceptDetector, Concepts
from oodlit.detectors.formulas.softmax import log_max_probability


@final
class RelativeCosine(ConceptDetector):
    """S = log max_c softmax_c(cos(x, mu_c) / T): mu_c the mean training feature of class c, or row c of the head.

    With the head of a zero-shot CLIP classifier, `concepts="head"` is MCM and requires no training images. `exp` of the
    score is the probability.

    Args:
        concepts: "means" (default) or "head".
        temperature: T > 0, default 1.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> from oodlit.outputs import Head
        >>> detector = RelativeCosine.preset("mcm")
        >>> fit([detector], [], Head(torch.eye(2)))
        >>> round(float(detector.score(Outputs(features=torch.tensor([[5.0, 0.0]]))).exp()), 4)  # sigmoid(1)
        0.7311
    """

    log_probability = True
    presets: ClassVar = {"class-means": {"concepts": "means"}, "mcm": {"concepts": "head", "temperature": 1.0}}
    display_name = "Relative cosine"
    reference = replace(
        Cosine.reference,
        deviations=(
            "the score is the logarithm of the probability; with text embeddings, the detector is MCM"
            " (Y. Ming, NeurIPS 2022, arXiv 2211.13445)"
        ),
    )

    def __init__(self, concepts: Concepts = "means", temperature: float = 1.0) -> None:
        super().__init__(concepts)
        check_positive("RelativeCosine", temperature=temperature)
        self.temperature = temperature

    def _score(self, outputs: Outputs) -> Scores:
        return log_max_probability(self._cosines(outputs) / self.temperature)
