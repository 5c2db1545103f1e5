"""One direction per class, and the cosines with it; shared by Cosine and RelativeCosine."""

from typing import Literal, final

from oodlit.base.checks import check_choice, memo_key
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import ClassMoments, Statistic, Statistics
from oodlit.outputs import Head, Logits, Outputs, unit

Concepts = Literal["means", "head"]
"""Where the directions come from: mean features of the training classes, or the rows of the head."""


class ConceptDetector(Detector):
    """A detector that compares an image with one direction per class.

    Args:
        concepts: Where the directions come from.

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
            self.needs, self.statistics = frozenset({"features", "head"}), ()

    @final
    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        if self.concepts == "means":  # of every class with an image
            directions = statistics.memo("class_directions", lambda: unit(statistics[ClassMoments].class_means))
        else:
            assert head is not None  # checked by `fit`
            directions = unit(head.weight.double())
        self.keep(directions=directions)

    @final
    def _cosines(self, outputs: Outputs) -> Logits:
        """Cosines with the directions in float64, computed once per batch for equal ones."""
        key = ("class_cosines", memo_key(self.directions))
        return outputs.memo(key, lambda: unit(outputs.require("features").double()) @ self.directions.T)
