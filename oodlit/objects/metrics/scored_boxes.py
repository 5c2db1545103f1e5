r"""The boxes of one data set with a confidence of at least t\*, what they hit, and their scores."""

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from oodlit.objects.detections import CORNERS
from oodlit.objects.metrics.matching import BestOverlaps, Objects, best_overlaps
from oodlit.objects.metrics.open_set import MatchedBoxes, OpenSet
from oodlit.objects.metrics.resampling import resample
from oodlit.objects.metrics.settings import ObjectSettings


@dataclass(frozen=True, eq=False)
class ScoredBoxes:
    r"""The boxes of one data set, rounded as the settings require.

    Args:
        dataset: Name of the data set.
        boxes: Its rows of the table of boxes, with a confidence of at least t\*.
        images: Its rows of the table of images.
        objects: Its annotated objects; classes are positions among the ID classes.
        settings: How to compute.
    """

    dataset: str
    boxes: pd.DataFrame
    images: pd.DataFrame
    objects: Objects
    settings: ObjectSettings

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    @property
    def is_annotated(self) -> bool:
        """Whether all images are annotated."""
        return bool((self.images["objects"] >= 0).all())

    @cached_property
    def image(self) -> Int[np.ndarray, " boxes"]:
        """Position of the image of every box."""
        number = {key: position for position, key in enumerate(self.images["key"])}
        return self.boxes["image"].map(number).to_numpy(dtype=np.int64)

    @cached_property
    def drawn(self) -> Int[np.ndarray, "repetitions images"]:
        """How often the bootstrap draws every image."""
        # The seed depends on the name of the set, not on its position: other sets do not change its intervals.
        seed = self.settings.seed + zlib.crc32(self.dataset.encode())
        return resample(len(self.images), repetitions=self.settings.bootstrap, seed=seed)

    @cached_property
    def corners(self) -> Float[np.ndarray, "boxes 4"]:
        """Corners that are matched with objects: rounded as in the published program if its rules are set."""
        corners = self.boxes[CORNERS].to_numpy(dtype=np.float64)
        return published_corners(corners) if self.settings.is_published else corners

    @cached_property
    def confidence(self) -> Float[np.ndarray, " boxes"]:
        """Confidence that boxes are ranked by: rounded to 3 decimals if the published rules are set."""
        confidence = self.boxes["confidence"].to_numpy(dtype=np.float64)
        return rounded(confidence, 3) if self.settings.is_published else confidence

    @cached_property
    def best(self) -> BestOverlaps:
        """The object of any class that every box overlaps most."""
        return best_overlaps(self.corners, self.image, self.objects, extent=self._extent)

    @cached_property
    def best_of_class(self) -> BestOverlaps:
        """The object of its predicted class that every box overlaps most."""
        classes = self.boxes["prediction"].to_numpy(dtype=np.int64)
        return best_overlaps(self.corners, self.image, self.objects, classes=classes, extent=self._extent)

    @cached_property
    def hits(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes hit an object of any class."""
        return self.reaches(self.best)

    @cached_property
    def counted(self) -> Bool[np.ndarray, " boxes"]:
        """Which boxes count for metrics of objects: the published rules ignore images without objects."""
        if not self.settings.is_published:
            return np.ones(len(self), dtype=bool)
        return np.isin(self.image, self.objects.image)

    def reaches(self, best: BestOverlaps) -> Bool[np.ndarray, " boxes"]:
        """Which overlaps are large enough for a hit."""
        iou = self.settings.iou
        return np.asarray(best.overlaps > iou if self.settings.is_published else best.overlaps >= iou)

    def scores(self, detector: str) -> Float[np.ndarray, " boxes"]:
        """The scores of a detector."""
        return self.boxes[detector].to_numpy(dtype=np.float64, copy=True)  # torch warns about read-only memory

    def open_set(self, detector: str, tau: float) -> OpenSet:
        """The boxes that count, divided by a threshold."""
        rows = self.counted
        boxes = MatchedBoxes(
            self.confidence[rows],
            self.scores(detector)[rows],
            self.best.objects[rows],
            self.best.overlaps[rows],
            len(self.objects),
            self.image[rows],
            self.objects.image,
        )
        return OpenSet(boxes, tau, self.settings.iou, strict=self.settings.is_published)

    @property
    def _extent(self) -> float:
        return 1.0 if self.settings.is_published else 0.0


def rounded(values: Float[np.ndarray, "*shape"], decimals: int) -> Float[np.ndarray, "*shape"]:
    """Round numbers as text formatting does, which `numpy.round` does not always match.

    Example:
        >>> rounded(np.array([0.15, 0.25]), 1).tolist(), np.round(np.array([0.15, 0.25]), 1).tolist()
        ([0.1, 0.2], [0.2, 0.2])
    """
    flat = [float(f"{value:.{decimals}f}") for value in values.ravel().tolist()]
    return np.array(flat, dtype=np.float64).reshape(values.shape)


def published_corners(corners: Float[np.ndarray, "boxes 4"]) -> Float[np.ndarray, "boxes 4"]:
    """Predicted boxes as FMIYC's program writes them: xmin and ymin + 1, all of them with one decimal."""
    return rounded(corners + np.array([1.0, 1.0, 0.0, 0.0]), 1)
