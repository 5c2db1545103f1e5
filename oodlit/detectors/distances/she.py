"""Inner product with the stored pattern of the predicted class."""

from typing import final

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.statistics import CorrectMeans, Statistics


@final
class SHE(Detector):
    """S = x . P_y, y the prediction; P_c the mean feature of the correctly classified training images of class c.

    A class without correctly classified images uses the mean of all its images, and a class without images the mean of
    the training set; a note reports both.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> detector = SHE()
        >>> fit([detector], [Outputs(x, x, torch.tensor([0, 1]))])
        >>> detector.score(Outputs(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 1.0]]))).tolist()
        [6.0]
    """

    needs = frozenset({"logits", "features"})
    statistics = (CorrectMeans,)
    invariances = frozenset({"feature_rotation", "class_permutation"})
    reference = Reference(
        "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern Hopfield Energy",
        "J. Zhang",
        "ICLR",
        2023,
        "https://openreview.net/forum?id=KkazG4lgKL",
        "uses the simplified inner product, as in the authors' code",
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        facts = statistics[CorrectMeans]
        right, present = facts.right_counts > 0, facts.class_counts > 0
        instead = "the mean of all images of such a class (of the training set if it has none) is used instead"
        self.note_classes(~right, f"have no correctly classified training images; {instead}")
        fallback = facts.class_means.where(present[:, None], facts.mean)
        self.keep(patterns=facts.means.where(right[:, None], fallback))

    def _score(self, outputs: Outputs) -> Scores:
        return (outputs.require("features").double() * self.patterns[outputs.predictions]).sum(dim=1)
