"""Accuracy of the classifier, from its own predictions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, full_spectrum, share
from oodlit.metrics.numerics.ranking import ArrayConvertible, as_integers
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import StreamMetric


def accuracy(predictions: ArrayConvertible | Sequence[int], labels: ArrayConvertible | Sequence[int]) -> float:
    """Fraction of images with a prediction that equals the label.

    Args:
        predictions: Predicted class, integers, shape (n,).
        labels: True class, integers >= 0, shape (n,). -1 (no label) is refused: select the labeled images first.

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` without images.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or an image has no label.

    Example:
        >>> accuracy([0, 2, 1, 1], [0, 2, 2, 1])
        0.75
    """
    return _accuracy_of(matches(predictions, labels))


def matches(predictions: ArrayConvertible | Sequence[int], labels: ArrayConvertible | Sequence[int]) -> Tensor:
    """Return whether each prediction equals its label; see `accuracy`.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or an image has no label.
    """
    predicted, true = as_integers(predictions, "predictions"), as_integers(labels, "labels")
    if predicted.shape != true.shape:
        raise InvalidArgumentError(f"expected one label per prediction ({len(predicted)}), got {len(true)} labels")
    if unlabeled := int((true < 0).sum()):
        raise InvalidArgumentError(
            f"labels: {unlabeled} of {len(true)} images have no label (-1); pass only the labeled images"
        )
    return predicted.to(true.device) == true


def _accuracy_of(is_correct: Tensor) -> float:
    if len(is_correct) == 0:
        return undefined("accuracy", "there is no labeled image")
    return int(is_correct.sum()) / len(is_correct)


class Accuracy(StreamMetric):
    """Streaming `accuracy`: NaN until there is an image.

    Example:
        >>> import torch
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([0, 2, 1, 1]), labels=torch.tensor([0, 2, 2, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    higher_is_better = True
    streams: ClassVar = {"is_correct": torch.bool}

    def update(self, predictions: Int[Tensor, " batch"], labels: Int[Tensor, " batch"]) -> None:
        """Add one batch.

        Args:
            predictions: Predicted class, shape (batch,).
            labels: True class, >= 0, shape (batch,).

        Raises:
            InvalidArgumentError: Shapes or types do not match, or an image has no label.
        """
        self.append("is_correct", matches(predictions, labels))

    def result(self) -> Tensor:
        """Return the accuracy of all images."""
        return self._float(_accuracy_of(self.stream("is_correct")))


_ENTRY = MetricEntry(
    name="accuracy",
    better="higher",
    of=(Role.ID, Role.SHIFT),
    text="fraction of labeled images that the classifier gets right",
    function=accuracy,
    compute=lambda images: share(images.is_correct.sum(), len(images), images.settings),
    order=90,
    of_classifier=True,
)
ENTRIES = (_ENTRY, replace(full_spectrum(_ENTRY, order=91), of=(Role.ID,)))
