"""The boxes of training images that detectors are fitted on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from oodlit.base.outputs import Outputs
from oodlit.objects.detections import Detections
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.metrics.matching import Objects, best_overlaps

FitOn = Literal["predicted", "matched"]

OVERLAP = 0.5
"""Smallest intersection over union with which a box hits an object."""


class ImageObjects:
    """Objects, except crowds, of selected images of a data set.

    Args:
        annotations: All objects of the data set.
    """

    def __init__(self, annotations: Annotations) -> None:
        self._position = {key: place for place, key in enumerate(annotations.keys)}
        single = ~annotations.is_crowd.numpy()
        image = annotations.image.numpy()[single]
        order = np.argsort(image, kind="stable")
        self._boxes = annotations.boxes.numpy()[single][order]
        self._labels = annotations.labels.numpy()[single][order]
        self._starts = np.searchsorted(image[order], np.arange(annotations.num_images + 1))

    def of(self, keys: Sequence[str]) -> Objects:
        """Return the objects of these images; the number of an image is its position in `keys`."""
        places = [self._position[key] for key in keys]
        spans = [np.arange(self._starts[place], self._starts[place + 1]) for place in places]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *spans])
        image = np.repeat(np.arange(len(keys)), [len(span) for span in spans])
        return Objects(self._boxes[rows], image, self._labels[rows])


def fit_rows(found: Detections, *, cut: float, objects: ImageObjects | None = None) -> Outputs | None:
    """Select the boxes to fit on, labeled with their predicted class; None if there are none.

    Args:
        found: Boxes of training images.
        cut: Boxes with a lower confidence are dropped (t*).
        objects: Annotated objects: boxes that hit no object of their class are dropped, too. None = all boxes count.
    """
    kept = found.above(cut)
    if objects is not None and len(kept):
        boxes, image, classes = (value.cpu().numpy() for value in (kept.boxes, kept.image, kept.classes))
        best = best_overlaps(boxes.astype(np.float64), image, objects.of(kept.keys), classes=classes)
        kept = kept.select(torch.from_numpy(best.overlaps >= OVERLAP).to(kept.boxes.device))
    return None if kept.outputs is None or not len(kept) else replace(kept.outputs, labels=kept.classes)
