"""Published figures of FindMeIfYouCan for its splits.

Source: 'FindMeIfYouCan: Bringing Open Set Metrics to near, far and farther Out-of-Distribution Object Detection',
Tables 2 and 12-30, as printed, converted from percent to shares. Its nOSE counts boxes called ID on unknown objects,
duplicates included, which is `nose_boxes` here. Its program uses the mean of the ID scores minus 1.645 standard
deviations as threshold.
"""

import re
from functools import cache
from typing import NamedTuple

from oodlit.results.published.table import read_rows

METRICS = {"auroc": "auroc", "fpr95": "fpr95", "nose": "nose_boxes", "ap_u": "ap_u", "p_u": "p_u", "r_u": "r_u"}
"""Names of the printed columns in oodlit."""

METHODS = {
    name: name.lower()
    for name in ("MSP", "Energy", "GEN", "KNN", "Mahalanobis", "ViM", "ASH", "DICE", "ReAct", "DDU", "LaRD")
}
"""Names of detectors in oodlit by printed method; others (VOS, DICE+ReAct) have none."""


class PublishedSplit(NamedTuple):
    """An OOD split of the benchmark.

    Args:
        name: As printed, such as COCO-near.
        id_dataset: VOC or BDD, the known classes.
        n_images: Number of its images.
    """

    name: str
    id_dataset: str
    n_images: int


class BoxFigure(NamedTuple):
    """One printed value.

    Args:
        architecture: The object detector: F-RCNN, F-RCNN VOS, Yolov8 or RT-DETR.
        id_dataset: VOC or BDD, the training data.
        split: As printed, such as COCO-near.
        method: The OOD detector, as printed.
        metric: Name of the metric in oodlit.
        value: A share; nose_boxes can exceed 1.
        table: Number of the table.
    """

    architecture: str
    id_dataset: str
    split: str
    method: str
    metric: str
    value: float
    table: int


def splits() -> dict[str, PublishedSplit]:
    """Return the six splits by name.

    Example:
        >>> sum(split.n_images for split in splits().values())
        7767
    """
    return {
        row["split"]: PublishedSplit(row["split"], row["id_dataset"], int(row["n_images"])) for row in _rows("splits")
    }


def split_named(name: str) -> PublishedSplit | None:
    """Return the split that the name of a data set refers to, if any.

    Example:
        >>> [found and found.name for found in map(split_named, ("near_coco_wrt_voc", "farther_oi", "near", "coco"))]
        ['COCO-near', 'OpenImages-farther', None, None]
    """
    words = set(re.split(r"[^a-z]+", name.lower()))
    source = "COCO" if "coco" in words else "OpenImages" if words & {"oi", "openimages"} else ""
    distance = next((word for word in ("near", "far", "farther") if word in words), "")
    return splits().get(f"{source}-{distance}")


def figures(split: str) -> list[BoxFigure]:
    """Return all printed values of a split.

    Example:
        >>> [f.value for f in figures("COCO-near") if f[:4] == ("Yolov8", "VOC", "COCO-near", "MSP")][-4:]
        [0.323, 0.085, 0.62, 0.11]
    """
    return [figure for figure in _figures() if figure.split == split]


def images_without_boxes(split: str) -> dict[str, float]:
    """Return the share of images of a split without a box above t*, by architecture (Table 12).

    Example:
        >>> images_without_boxes("COCO-near")["F-RCNN"]
        0.2036
    """
    return {
        row["architecture"]: _share(row["pct_images_no_prediction"])
        for row in _rows("no_prediction")
        if row["split"] == split
    }


@cache
def _figures() -> list[BoxFigure]:
    found = []
    for file in ("auroc_fpr", "osod"):
        for row in _rows(file):
            architecture, known, split, method = (row[n] for n in ("architecture", "id_dataset", "split", "method"))
            found += [
                BoxFigure(architecture, known, split, method, metric, _share(row[column]), int(row["table"]))
                for column, metric in METRICS.items()
                if row.get(column)
            ]
    return found


def _share(percent: str) -> float:
    return round(float(percent) / 100, 6)


def _rows(name: str) -> list[dict[str, str]]:
    return read_rows(f"fmiyc_{name}.csv", "oodlit.objects.published")
