"""Accuracies that timm publishes for its networks.

Source: timm's `results/results-*.csv` (Apache-2.0), top-1 in percent, joined by model and image size. ImageNet-R and -A
are masked to their 200 classes.
"""

from functools import cache

from oodlit.results.published.protocol import Protocol, weights
from oodlit.results.published.table import PublishedFigure, PublishedTable, read_rows

DATASETS = ("imagenet_val", "imagenet_v2", "imagenet_r", "imagenet_a", "imagenet_sketch")


def published_accuracy(model: str, dataset: str, *, img_size: int, crop_pct: float) -> float | None:
    """The published share of correct predictions of a network at one size and crop; None if there is none.

    Args:
        model: timm's name with the tag of the weights.
        dataset: One of `DATASETS`.
        img_size: Side of the images in pixels.
        crop_pct: Share of the resized image that the crop keeps.

    Example:
        >>> published_accuracy("resnet50.a1_in1k", "imagenet_val", img_size=224, crop_pct=0.95)
        0.80382
    """
    row = _rows().get((model, img_size, round(crop_pct, 4)))
    return None if row is None or dataset not in DATASETS or not row[dataset] else round(float(row[dataset]) / 100, 7)


@cache
def _figures(file: str) -> tuple[PublishedFigure, ...]:
    return tuple(
        PublishedFigure(weights(*network), "", dataset, "accuracy", round(float(row[dataset]) / 100, 7))
        for network, row in _rows(file).items()
        for dataset in DATASETS
        if row[dataset]
    )


TIMM = PublishedTable(
    name="timm",
    source="R. Wightman, PyTorch Image Models, results of 2025",
    url="https://github.com/huggingface/pytorch-image-models",
    tables="results/results-*.csv (Apache-2.0): every combination of weights, image size and crop counts as a network",
    rule="top-1 accuracy over all images; on ImageNet-R and -A, only the 200 classes of the set are predicted",
    file="timm_accuracy.csv",
    protocol=Protocol(
        "images",
        images={
            "imagenet_val": 50_000,
            "imagenet_v2": 10_000,
            "imagenet_r": 30_000,
            "imagenet_a": 7_500,
            "imagenet_sketch": 50_889,
        },
    ),
    read=_figures,
)
"""Top-1 accuracies of networks."""


@cache
def _rows(file: str = "timm_accuracy.csv") -> dict[tuple[str, int, float], dict[str, str]]:
    rows = read_rows(file)
    return {(row["model"], int(row["img_size"]), round(float(row["crop_pct"]), 4)): row for row in rows}
