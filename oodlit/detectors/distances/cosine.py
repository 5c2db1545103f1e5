"""Cosine with the nearest class direction."""

from typing import ClassVar, final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.concepts import ConceptDetector


@final
class Cosine(ConceptDetector):
    """S = max_c cos(x, mu_c): mu_c the mean training feature of class c, or row c of the head.

    With the head of a zero-shot CLIP classifier, whose rows are the text embeddings of the classes, `concepts="head"`
    is zero-shot Cosine and requires no training images.

    Args:
        concepts: "means" (default) or "head".

    Raises:
        InvalidArgumentError: `concepts` has another value.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = Cosine()
        >>> fit([detector], [Outputs(features=torch.tensor([[1.0, 0.0], [0.0, 2.0]]), labels=torch.tensor([0, 1]))])
        >>> [round(s, 4) for s in detector.score(Outputs(features=torch.tensor([[3.0, 4.0], [0.0, 9.0]]))).tolist()]
        [0.8, 1.0]
    """

    presets: ClassVar = {"class-means": {"concepts": "means"}, "zero-shot": {"concepts": "head"}}
    reference = Reference(
        "In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation",
        "J. Bitterwolf",
        "ICML",
        2023,
        "https://arxiv.org/abs/2306.00826",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return self._cosines(outputs).amax(dim=1)
