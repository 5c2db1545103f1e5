"""Cosines with one direction per class, shared by Cosine and RelativeCosine."""

from typing import Literal, final

from oodlit.base.checks import check_choice, memo_key
from oodlit.base.outputs import Head, Logits, Outputs, unit
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Statistic, Statistics

Concepts = Literal["means", "head"]
"""Source of the directions: mean features of the training classes, or the rows of the head."""


class ConceptDetector(Detector):
    """Base class of detectors that compare an image with one direction per class.

    Args:
        concepts: Source of the directions.

    Raises:
        InvalidArgumentError: `concepts` is neither "means" nor "head".
    """

    needs = frozenset({"features"})
    statistics: tuple[type[Statistic], ...] = (ClassMoments,)
    invariances = frozenset({"feature_scale", "feature_rotation", "class_permutation"})

    def __init__(self, concepts: Concepts = "means") -> None:
        super().__init__()
        check_choice(type(self).__name__, "concepts", concepts, ("means", "head"))
        self.concepts = concepts
        if concepts == "head":
            self.needs, self.statistics = self.needs | {"head"}, ()

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        if self.concepts == "means":  # one row per class with images
            directions = statistics.memo("class_directions", lambda: unit(statistics[ClassMoments].class_means))
        else:
            assert head is not None  # checked by `fit`
            directions = unit(head.unmasked.weight.double())
        self.keep(directions=directions)

    @final
    def _cosines(self, outputs: Outputs) -> Logits:
        """Cosines with the directions in float64, computed once per batch for equal directions."""
        key = ("class_cosines", memo_key(self.directions))
        return outputs.memo(key, lambda: unit(outputs.require("features").double()) @ self.directions.T)
