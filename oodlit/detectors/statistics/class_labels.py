"""Labels of training images."""

from torch import Tensor

from oodlit.base.checks import name_images
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

MOST_CLASSES = 100_000
"""Statistics have a row per class up to the largest label: numbers such as WordNet offsets would fill the memory."""


def train_labels(outputs: Outputs, num_classes: int | None = None) -> Tensor:
    """Labels of a training batch.

    Args:
        outputs: A batch.
        num_classes: Number of logits, where labels are compared with them.

    Raises:
        InvalidArgumentError: There are no labels, or one is negative, not below `num_classes` or too large for the
            index of a class.
    """
    labels = outputs.require("labels")
    bad = (labels < 0).nonzero().flatten().tolist()
    if bad:
        raise InvalidArgumentError(
            f"{len(bad)} of {len(labels)} training images have no label ({name_images(outputs, bad)});"
            " the train stream needs labels >= 0"
        )
    if num_classes is not None and len(labels) and int(labels.max()) >= num_classes:
        raise InvalidArgumentError(
            f"a training image has label {int(labels.max())}, but there are {num_classes} logits;"
            f" labels from 0 to {num_classes - 1} are needed"
        )
    if len(labels) and int(labels.max()) >= MOST_CLASSES:
        raise InvalidArgumentError(
            f"a training image has label {int(labels.max())}; labels are indices of classes, from 0 to at most"
            f" {MOST_CLASSES - 1} - number the classes from zero"
        )
    return labels
