"""Protocols for sets that cover some of the classes (ImageNet-R, ImageNet-A)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.checks import check_choice
from oodlit.base.errors import InvalidArgumentError

PROTOCOLS = ("unmasked", "masked")
"""unmasked: the largest of all logits; masked: the largest among the classes of the set, as in the sets' papers."""


def subset_predictions(
    logits: Float[Tensor, "batch classes"], labels: Sequence[int], *, protocol: str
) -> Int[Tensor, " batch"]:
    """Predict classes on a set that covers only some classes, under a named protocol.

    The protocol only affects the accuracy. OOD scores always come from the unmasked logits, since a deployed network
    does not know which classes will occur.

    Args:
        logits: Logits of all classes.
        labels: Class indices that occur in the set, such as `describe("imagenet_r").label_subset`.
        protocol: "unmasked" or "masked".

    Returns:
        Class indices among all classes, in both protocols.

    Raises:
        InvalidArgumentError: The protocol is unknown, or a class index is repeated or out of range.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0, 2.0, 0.0, 5.0]])
        >>> [subset_predictions(logits, (0, 2, 3), protocol=name).item() for name in PROTOCOLS]
        [4, 0]
    """
    check_choice("subset_predictions", "protocol", protocol, PROTOCOLS)
    classes = logits.shape[1]
    if not labels or len(set(labels)) < len(labels) or not 0 <= min(labels) <= max(labels) < classes:
        wrong = sorted({n for n in labels if labels.count(n) > 1 or not 0 <= n < classes})
        raise InvalidArgumentError(
            f"subset_predictions: expected one or more distinct class indices from 0 to {classes - 1}, got"
            f" {f'indices that are repeated or out of range ({wrong[:5]})' if wrong else 'none'}"
        )
    if protocol == "unmasked":
        return logits.argmax(dim=1)
    subset = torch.tensor(sorted(labels), device=logits.device)
    return subset[logits[:, subset].argmax(dim=1)]
