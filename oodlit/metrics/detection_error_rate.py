"""Detection error rate: is the image rejected exactly when the classifier would be wrong?"""

import math
from numbers import Real
from typing import Any

from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.metrics.entry import Images, MetricEntry, Value, share
from oodlit.metrics.numerics.ranking import FlagLike, ScoreLike, as_flags, as_scores
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import SelectiveMetric


def detection_error_rate(scores: ScoreLike, is_correct: FlagLike, *, threshold: float | int) -> float:
    r"""DER, human-centric: (rejected and correct + accepted and wrong) / all; an image is accepted if score >= t.

    For DER@p the threshold is `acceptance_threshold(scores of correctly classified training images, tpr=p)`. OOD images
    count as wrong; images under shift by `prediction == label`.

    Args:
        scores: Higher = more in-distribution, shape (n,).
        is_correct: Whether the prediction is correct, boolean, shape (n,).
        threshold: Acceptance threshold t; infinities are allowed.

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` without images or for a NaN threshold.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or the threshold is not a number.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> detection_error_rate([0.9, 0.4, 0.8, 0.1], [True, True, False, False], threshold=0.5)
        0.5

    References:
        Zhu et al.: Rethinking Out-of-Distribution Detection From a Human-Centric Perspective. IJCV 2024.
    """
    values = as_scores(scores)
    correct = as_flags(is_correct, "is_correct", like=values)
    _check_threshold(threshold)
    if len(values) == 0:
        return undefined("detection_error_rate", "there is no image")
    if math.isnan(threshold):
        return undefined("detection_error_rate", "the threshold is NaN")
    # Both sides in float64: a float32 score equal to the threshold it gave must stay equal.
    return int(((values.double() >= threshold) != correct).sum()) / len(values)


def _check_threshold(threshold: object) -> None:
    if not isinstance(threshold, Real):
        raise InvalidArgumentError(
            f"expected threshold to be a number, such as acceptance_threshold(scores, tpr=0.95), got {threshold!r}"
        )


class DetectionErrorRate(SelectiveMetric):
    """Streaming `detection_error_rate` at a fixed threshold: NaN until there is an image.

    Args:
        threshold: Acceptance threshold, from correctly classified training images.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = DetectionErrorRate(threshold=0.5)
        >>> metric.update(torch.tensor([0.9, 0.4, 0.8]), is_correct=torch.tensor([True, True, False]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, threshold: float | int, **kwargs: Any) -> None:
        """Store the threshold."""
        _check_threshold(threshold)
        super().__init__(**kwargs)
        self.threshold = threshold

    def value(self, scores: Tensor, is_correct: Tensor) -> float:
        """Return the DER of all images."""
        return detection_error_rate(scores, is_correct, threshold=self.threshold)


def _compute(images: Images) -> Value:
    if math.isnan(images.threshold):
        return Value.undefined("no training image is classified correctly")
    return share((images.accepted != images.is_correct).sum(), len(images), images.settings)


ENTRIES = (
    MetricEntry(
        name="der",
        better="lower",
        of=(Role.ID, Role.OOD, Role.SHIFT),
        text=(
            "fraction of wrong decisions (to reject a correctly classified image, or to accept a misclassified or OOD"
            " image) at the threshold that keeps {share} % of the correctly classified training images"
        ),
        function=detection_error_rate,
        compute=_compute,
        order=120,
        numbered_by="der",
        needs=frozenset({"labels", "training"}),
        by_threshold=True,
        mean_interval="share",
    ),
)
