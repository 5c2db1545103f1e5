"""Boxes of a run with their scores: every process collects them, and the end of the run joins them by image.

`same_boxes` matches the boxes of two passes over the same images, which differ slightly if the precision differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from oodlit.base.errors import NonFiniteScoreError, RequirementError
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.objects.detections import Detections
from oodlit.runs.images.rows import ImageRows, gather
from oodlit.runs.verification import Matched

_FIELDS = ("boxes", "confidence", "image", "keys", "sizes", "predictions", "index")


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


@dataclass
class BoxRows:
    """Boxes of one data set on this process.

    Args:
        dataset: Name of the stream.
        detectors: Names of the scores.
    """

    dataset: str
    detectors: Sequence[str]
    scores: ImageRows = field(init=False)
    found: list[Detections] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make room for scores; a box is a row."""
        self.scores = ImageRows(self.dataset, self.detectors, what="boxes")

    def add(self, found: Detections, scores: dict[str, Tensor]) -> dict[str, NonFiniteScoreError]:
        """Add one batch, without logits and features. Errors are those of `ImageRows.add`."""
        self.found.append(replace(found.to("cpu"), outputs=None))
        return {} if found.outputs is None or not len(found) else self.scores.add(found.outputs, scores)

    def state(self) -> dict[str, Any]:
        """All collected rows, as plain values and tensors."""
        if len(self.found) > 1:
            self.found = [Detections.cat(self.found)]
        found = {name: getattr(self.found[0], name) for name in _FIELDS} if self.found else None
        return {"found": found and {**found, "keys": list(found["keys"])}, "scores": self.scores.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the rows by those that `state` returned."""
        self.found = [] if state["found"] is None else [Detections(**state["found"])]
        self.scores.restore(state["scores"])

    def gather(self, group: Group, *, detectors: Sequence[str]) -> tuple[Detections, dict[str, np.ndarray]]:
        """Join the boxes of all processes and their scores in float64, sorted by image key and number of the box.

        Every process calls it and gets the same.

        Args:
            group: Processes that move CPU tensors.
            detectors: Which scores.
        """
        parts = [part for of_process in gather_objects(group, self.found) for part in of_process if part.num_images]
        table = gather(self.scores, group, detectors=detectors).set_index("key")
        none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), [])
        found = in_order(Detections.cat(parts)) if parts else none
        table = table.loc[found.box_keys]
        return found, {name: table[name].to_numpy(np.float64) for name in detectors}


def in_order(found: Detections) -> Detections:
    """Return the same images and boxes, sorted by image key and number of the box.

    Example:
        >>> found = Detections(torch.ones(2, 4), torch.ones(2), torch.tensor([0, 1]), ["val/b", "val/a"])
        >>> in_order(found).box_keys
        ['val/a#0', 'val/b#0']
    """
    by_key = sorted(range(found.num_images), key=found.keys.__getitem__)
    rank = torch.empty(found.num_images, dtype=torch.int64)
    rank[torch.tensor(by_key, dtype=torch.int64)] = torch.arange(found.num_images)
    image = rank[found.image]
    rows = torch.from_numpy(np.lexsort((found.numbers.numpy(), image.numpy())))
    return replace(
        found,
        boxes=found.boxes[rows],
        confidence=found.confidence[rows],
        image=image[rows],
        keys=[found.keys[i] for i in by_key],
        sizes=None if found.sizes is None else found.sizes[by_key],
        predictions=found.classes[rows],
        index=found.numbers[rows],
    )
