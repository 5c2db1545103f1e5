"""Labels of training images."""

from torch import Tensor

from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = ["train_labels"]


def train_labels(outputs: Outputs) -> Tensor:
    """Labels of a training batch.

    Raises:
        InvalidArgumentError: There are none, or one is negative; names the first keys.
    """
    labels = outputs.require("labels")
    bad = (labels < 0).nonzero().flatten().tolist()
    if bad:
        named = "" if outputs.keys is None else f" (first: {', '.join(outputs.keys[i] for i in bad[:3])})"
        raise InvalidArgumentError(
            f"{len(bad)} of {len(labels)} training images have no label{named}; the train stream needs labels >= 0"
        )
    return labels
