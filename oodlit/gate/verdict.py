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
        p_value: Conformal p-value of the hypothesis that the image is like the ID images, in (0, 1]; None if the gate
            has no calibration images for it. See `Calibration`.
    """

    accepted: bool
    score: float
    threshold: float
    class_index: int | None
    class_name: str
    probability: float
    p_value: float | None = None
