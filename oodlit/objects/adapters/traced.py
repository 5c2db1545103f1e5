"""Repeat torchvision's selection of boxes to find the logits of each box; the network's output verifies the result."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import batched_nms

from oodlit.base.errors import RequirementError


def survivors(scores: Tensor, threshold: float, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the scores above a threshold, at most the `limit` highest.

    Args:
        scores: Shape (rows, columns).
        threshold: Scores must be larger.
        limit: Largest number; None = all.

    Example:
        >>> rows, columns = survivors(torch.tensor([[0.1, 0.9], [0.8, 0.0]]), 0.5)
        >>> rows.tolist(), columns.tolist()
        ([0, 1], [1, 0])
    """
    flat = scores.flatten()
    places = torch.where(flat > threshold)[0]
    if limit is not None:
        places = places[flat[places].topk(min(limit, len(places))).indices]
    return places.div(scores.shape[1], rounding_mode="floor"), places % scores.shape[1]


def suppressed(boxes: Tensor, scores: Tensor, labels: Tensor, overlap: float, limit: int) -> Tensor:
    """Return positions of the boxes that non-maximum suppression keeps within each class, highest score first."""
    kept: Tensor = batched_nms(boxes, scores, labels, overlap)
    return kept[:limit]


def verify(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    size: tuple[int, int],
    answer: Mapping[str, Tensor],
    original: tuple[int, int],
) -> None:
    """Check that these boxes are the output of the network.

    Args:
        boxes: In pixels of the network's input.
        scores: Their confidence.
        labels: Their class, as numbered by the network.
        size: Height and width of the image in the network's input.
        answer: Boxes (in original pixels), scores and labels that the network returned.
        original: Height and width of the image.

    Raises:
        RequirementError: They differ, so the network selects boxes in another way.
    """
    same = len(boxes) == len(answer["boxes"]) and bool((labels == answer["labels"]).all())
    if same and len(boxes):
        resized = resize_boxes(boxes, list(size), list(original))
        off = float((resized - answer["boxes"]).abs().amax()) / max(*original, 1)
        same = max(off, float((scores - answer["scores"]).abs().amax())) < 1e-5
    if not same:
        raise RequirementError(
            "the predicted boxes cannot be traced to their logits, because the network selects boxes differently from"
            " torchvision; wrap the network in a FunctionReader that returns boxes and logits"
        )
