"""What a gate says of one image."""

from typing import NamedTuple


class Verdict(NamedTuple):
    """What a gate says of one image.

    Args:
        accepted: Whether the image is one that the classifier should answer for.
        score: Of the detector; higher = more in-distribution.
        threshold: From this score on images are accepted.
        class_index: The predicted class; None without classifier.
        class_name: Its name; "" where the run knows none.
        probability: Largest softmax probability; NaN without classifier.
    """

    accepted: bool
    score: float
    threshold: float
    class_index: int | None
    class_name: str
    probability: float
