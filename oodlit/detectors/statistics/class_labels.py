"""Labels of training images."""

from torch import Tensor

from oodlit.base.checks import name_images
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs

MOST_CLASSES = 100_000
"""Statistics have a row per class up to the largest label: numbers such as WordNet offsets would exhaust memory."""


def train_labels(outputs: Outputs, num_classes: int | None = None) -> Tensor:
    """Return the labels of a training batch.

    Args:
        outputs: A batch.
        num_classes: Number of logits, to compare labels with.

    Raises:
        InvalidArgumentError: Labels are missing, negative, not below `num_classes`, or too large for a class index.
    """
    labels = outputs.require("labels")
    bad = (labels < 0).nonzero().flatten().tolist()
    if bad:
        raise InvalidArgumentError(
            f"{len(bad)} of {len(labels)} training images have no label ({name_images(outputs, bad)}); use labels >= 0"
        )
    if num_classes is not None and len(labels) and int(labels.max()) >= num_classes:
        raise InvalidArgumentError(
            f"expected labels from 0 to {num_classes - 1} for {num_classes} logits, got label {int(labels.max())} for"
            " a training image"
        )
    if len(labels) and int(labels.max()) >= MOST_CLASSES:
        raise InvalidArgumentError(
            f"expected labels from 0 to {MOST_CLASSES - 1}, got {int(labels.max())}; use class indices (0, 1, ...)"
        )
    return labels
