"""Match the boxes of two passes over the same images, which differ slightly if the precision differs."""

import torch
from torchvision.ops import box_iou

from oodlit.base.errors import RequirementError
from oodlit.objects.detections import Detections
from oodlit.runs.verification import Matched

OVERLAP = 0.5
"""Smallest intersection over union of two boxes that count as the same."""
LEAST = 0.5
"""Smallest accepted fraction of the boxes of the plain network that this run also finds."""


def same_boxes(found: Detections, exact: Detections) -> Matched:
    """Pair each box of the plain network with the box of this run at the same place.

    Raises:
        RequirementError: Fewer than half of them were found.
    """
    assert found.outputs is not None
    assert exact.outputs is not None
    overlaps = box_iou(found.boxes.float(), exact.boxes.float())
    overlaps[found.image[:, None] != exact.image[None, :]] = 0
    best, rows = overlaps.max(dim=0) if len(found) and len(exact) else (overlaps.new_zeros(len(exact)), exact.image)
    kept = best >= OVERLAP
    if int(kept.sum()) < LEAST * len(exact):
        raise RequirementError(
            f"only {int(kept.sum())} of the {len(exact)} boxes that the network predicts in full precision are among"
            f" the {len(found)} boxes of this run; at least half are required. Use precision 32, without torch.compile"
            " and channels_last"
        )
    places = torch.where(kept)[0]
    return Matched(rows[places], found.outputs, exact.outputs.select(places))
