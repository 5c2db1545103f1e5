"""One direction per class, and the cosines with it; shared by Cosine and RelativeCosine."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from oodlit.checks import check_choice, memo_key
from oodlit.detectors.statistics import ClassMoments, Statistic, Statistics
from oodlit.outputs import Head, Outputs, unit

Concepts = Literal["means", "head"]
"""Where the directions come from: mean features of the training classes, or the rows of the head."""


def concept_needs(owner: str, concepts: str) -> frozenset[str]:
    """Needs of a detector whose class directions come from `concepts`.

    Raises:
        InvalidArgumentError: `concepts` is neither "means" nor "head".
    """
    check_choice(owner, "concepts", concepts, ("means", "head"))
    return frozenset({"features"} if concepts == "means" else {"features", "head"})


def concept_statistics(concepts: str) -> tuple[type[Statistic], ...]:
    """Statistics of a detector whose class directions come from `concepts`."""
    return (ClassMoments,) if concepts == "means" else ()


def concept_vectors(concepts: str, statistics: Statistics, head: Head | None) -> Float[Tensor, "classes features"]:
    """Unit vectors, float64: of every class with an image, or of every row of the head."""
    if concepts == "means":
        return statistics.memo("class_directions", lambda: unit(statistics[ClassMoments].class_means))
    assert head is not None  # checked by `fit`
    return unit(head.weight.double())


def class_cosines(outputs: Outputs, vectors: Float[Tensor, "classes features"]) -> Float[Tensor, "batch classes"]:
    """Cosines in float64, computed once per batch for equal vectors."""
    return outputs.memo(
        ("class_cosines", memo_key(vectors)), lambda: unit(outputs.require("features").double()) @ vectors.T
    )
