"""Softmax over the cosines to the class directions."""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.formulas.concepts import (
    Concepts,
    class_cosines,
    concept_needs,
    concept_statistics,
    concept_vectors,
)
from oodlit.detectors.formulas.softmax import log_max_probability
from oodlit.detectors.statistics import Statistics
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs


@final
class RelativeCosine(Detector):
    """S = log max_c softmax_c(cos(x, mu_c) / T): mu_c the mean training feature of class c, or row c of the head.

    With the head of a zero-shot CLIP classifier and `concepts="head"` this is MCM; no training images are needed then.
    `exp` of the score is the probability itself.

    Args:
        concepts: "means" (default) or "head".
        temperature: T > 0, default 1.

    Raises:
        InvalidArgumentError: An argument is out of its range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = RelativeCosine.preset("mcm")
        >>> fit([detector], [], Head(torch.eye(2)))
        >>> round(float(detector.score(Outputs(features=torch.tensor([[5.0, 0.0]]))).exp()), 4)  # sigmoid(1)
        0.7311
    """

    needs = frozenset({"features"})
    statistics = concept_statistics("means")
    log_probability = True
    invariances = frozenset({"feature_scale", "feature_rotation", "class_permutation"})
    presets: ClassVar = {"class-means": {"concepts": "means"}, "mcm": {"concepts": "head", "temperature": 1.0}}
    reference = Reference(
        "In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation",
        "J. Bitterwolf",
        "ICML",
        2023,
        "https://arxiv.org/abs/2306.00826",
        "log of the probability; on text embeddings it is MCM (Y. Ming, NeurIPS 2022, arXiv 2211.13445)",
    )
    directions: Tensor

    def __init__(self, concepts: Concepts = "means", temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise InvalidArgumentError(
                f"RelativeCosine: temperature={temperature}; a positive, finite number is needed"
            )
        self.concepts = concepts
        self.temperature = temperature
        self.needs = concept_needs("RelativeCosine", concepts)
        self.statistics = concept_statistics(concepts)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        self.register_buffer("directions", concept_vectors(self.concepts, statistics, head))

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        return log_max_probability(class_cosines(outputs, self.directions) / self.temperature)
