"""The verdict of a gate on an image."""

from typing import NamedTuple


class Verdict(NamedTuple):
    """The verdict of a gate on an image.

    Args:
        accepted: Whether the classifier should answer for the image.
        score: Score of the detector; higher = more in-distribution.
        threshold: Lowest accepted score.
        class_index: Index of the predicted class; None without a classifier.
        class_name: Name of the predicted class; empty if the run does not name the classes.
        probability: Largest softmax probability; NaN without a classifier.
    """

    accepted: bool
    score: float
    threshold: float
    class_index: int | None
    class_name: str
    probability: float
