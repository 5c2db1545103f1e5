"""Cosine to the nearest class direction."""

from typing import ClassVar, final

from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.concepts import (
    Concepts,
    class_cosines,
    concept_needs,
    concept_statistics,
    concept_vectors,
)
from oodlit.detectors.statistics import Statistics
from oodlit.outputs import Head, Outputs, Scores


@final
class Cosine(Detector):
    """S = max_c cos(x, mu_c): mu_c the mean training feature of class c, or row c of the head.

    With the head of a zero-shot CLIP classifier, whose rows are the text embeddings of the classes, `concepts="head"`
    is zero-shot Cosine; no training images are needed then.

    Args:
        concepts: "means" (default) or "head".

    Raises:
        InvalidArgumentError: `concepts` is neither.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = Cosine()
        >>> fit([detector], [Outputs(features=torch.tensor([[1.0, 0.0], [0.0, 2.0]]), labels=torch.tensor([0, 1]))])
        >>> [round(s, 4) for s in detector.score(Outputs(features=torch.tensor([[3.0, 4.0], [0.0, 9.0]]))).tolist()]
        [0.8, 1.0]
    """

    needs = frozenset({"features"})
    statistics = concept_statistics("means")
    invariances = frozenset({"feature_scale", "feature_rotation", "class_permutation"})
    presets: ClassVar = {"class-means": {"concepts": "means"}, "zero-shot": {"concepts": "head"}}
    reference = Reference(
        "In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation",
        "J. Bitterwolf",
        "ICML",
        2023,
        "https://arxiv.org/abs/2306.00826",
    )

    def __init__(self, concepts: Concepts = "means") -> None:
        super().__init__()
        self.concepts = concepts
        self.needs = concept_needs("Cosine", concepts)
        self.statistics = concept_statistics(concepts)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        self.register_buffer("directions", concept_vectors(self.concepts, statistics, head))

    def _score(self, outputs: Outputs) -> Scores:
        return class_cosines(outputs, self.directions).amax(dim=1)
