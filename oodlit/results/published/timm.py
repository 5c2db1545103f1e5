"""Accuracies that timm publishes for its networks: does a network do here what it does there?

Source: timm's `results/results-*.csv` (Apache-2.0), top-1 in percent, joined by model and image size. ImageNet-R and -A
are masked to their 200 classes there.
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

DATASETS = ("imagenet_val", "imagenet_v2", "imagenet_r", "imagenet_a", "imagenet_sketch")


class PublishedAccuracy(NamedTuple):
    """One published value.

    Args:
        model: timm's name with the tag of the weights.
        img_size: Side of the images in pixels.
        crop_pct: Share of the resized image that the crop keeps.
        accuracy: Share of right predictions, 0..1.
    """

    model: str
    img_size: int
    crop_pct: float
    accuracy: float


def published_accuracy(model: str, dataset: str, *, img_size: int, crop_pct: float) -> PublishedAccuracy | None:
    """The published value of a network on a data set at one size and crop; None if there is none.

    Example:
        >>> published_accuracy("resnet50.a1_in1k", "imagenet_val", img_size=224, crop_pct=0.95).accuracy
        0.80382
    """
    row = _rows().get((model, img_size, round(crop_pct, 4)))
    if row is None or dataset not in DATASETS or not row[dataset]:
        return None
    return PublishedAccuracy(model, img_size, crop_pct, round(float(row[dataset]) / 100, 7))


@cache
def _rows() -> dict[tuple[str, int, float], dict[str, str]]:
    file = resources.files("oodlit.results.published") / "timm_accuracy.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    return {
        (row["model"], int(row["img_size"]), round(float(row["crop_pct"]), 4)): row for row in csv.DictReader(lines)
    }
