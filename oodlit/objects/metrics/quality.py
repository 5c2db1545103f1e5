"""Quality of the object detector on the ID set: mean average precision by torchmetrics."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError, MissingExtraError
from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, Value
from oodlit.objects.detections import Detections
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.metrics.boxes import Boxes


def has_id_quality() -> bool:
    """Whether the extra `objects` is installed."""
    return importlib.util.find_spec("faster_coco_eval") is not None


def id_quality(detections: Detections, annotations: Annotations) -> dict[str, float]:
    r"""Compute the mean average precision of the ID classes from all boxes, also those below t\*.

    Args:
        detections: All boxes of the ID images, with their predicted classes.
        annotations: The objects of these images, with classes in the order of the logits.

    Returns:
        `map` (IoU .5:.95), `map50` and `map50/<class>` of every class; NaN without annotated objects.

    Raises:
        MissingExtraError: `faster-coco-eval` is not installed.
        InvalidArgumentError: Predicted classes are unknown.
    """
    if not has_id_quality():
        raise MissingExtraError.of("mean average precision", "objects")
    if len(detections) and int(detections.classes.min()) < 0:
        raise InvalidArgumentError("mean average precision requires the predicted class of every box")
    from torchmetrics.detection import MeanAveragePrecision  # noqa: PLC0415

    # In float64, as in COCO's evaluation: torchmetrics' own points are float32, which a recall of 0.3 does not reach.
    overlaps, recalls = np.linspace(0.5, 0.95, 10).tolist(), np.linspace(0, 1, 101).tolist()
    metric: Any = MeanAveragePrecision(
        backend="faster_coco_eval", extended_summary=True, iou_thresholds=overlaps, rec_thresholds=recalls
    )
    metric.warn_on_many_detections = False  # as in COCO's evaluation, the first 100 boxes per image and class count
    metric.update(_predictions(detections), _targets(detections, annotations))
    found = metric.compute()
    classes = found["classes"].reshape(-1).tolist()
    values = {"map": float(found["map"]), "map50": float(found["map_50"])}
    for position, name in enumerate(annotations.class_names):
        # (overlaps, recalls, classes, areas, largest numbers of boxes)
        at_50 = (
            found["precision"][0, :, classes.index(position), 0, -1] if position in classes else torch.tensor([-1.0])
        )
        values[f"map50/{name}"] = float(at_50.double().mean())
    return {name: math.nan if value < 0 else value for name, value in values.items()}


def _predictions(found: Detections) -> list[dict[str, Tensor]]:
    """One entry per image, by key and corners, so that the order of equal scores is defined."""
    rows = torch.from_numpy(np.lexsort(found.boxes.double().numpy().T))
    fields = {"boxes": found.boxes.double(), "scores": found.confidence.double(), "labels": found.classes}
    every = _per_image({name: value[rows] for name, value in fields.items()}, found.image[rows], found.num_images)
    return [every[image] for image in _by_key(found)]


def _targets(detections: Detections, annotations: Annotations) -> list[dict[str, Tensor]]:
    """The objects of the same images in the same order."""
    place = {key: position for position, key in enumerate(annotations.keys)}
    if lost := [key for key in detections.keys if key not in place]:
        raise InvalidArgumentError(
            f"mean average precision: {len(lost)} images with predictions (first: {lost[0]}) are missing from the"
            ' annotations; list them under "images", even if they contain no objects'
        )
    fields = {"boxes": annotations.boxes, "labels": annotations.labels, "iscrowd": annotations.is_crowd.long()}
    every = _per_image(fields, annotations.image, annotations.num_images)
    return [every[place[detections.keys[image]]] for image in _by_key(detections)]


def _by_key(found: Detections) -> list[int]:
    return sorted(range(found.num_images), key=found.keys.__getitem__)


def _per_image(fields: dict[str, Tensor], image: Tensor, n_images: int) -> list[dict[str, Tensor]]:
    order = image.argsort(stable=True)
    counts = torch.bincount(image, minlength=n_images).tolist()
    split = {name: torch.split(value[order], counts) for name, value in fields.items()}
    return [{name: parts[position] for name, parts in split.items()} for position in range(n_images)]


def _recorded(name: str) -> Callable[[Boxes], Value]:
    """Look up a value that was computed from all boxes."""

    def compute(boxes: Boxes) -> Value:
        value = boxes.quality[f"{name}/{boxes.group}" if boxes.group else name]
        return Value(value, reason=f"no object of {boxes.group or 'any class'} is annotated")

    return compute


def _entry(name: str, overlaps: str, order: int) -> MetricEntry:
    text, needs = f"mean average precision of the ID classes, {overlaps} (all boxes)", frozenset({"quality"})
    compute = _recorded(name)
    return MetricEntry(name, "higher", (Role.ID,), text, id_quality, compute, order, needs=needs, of_classifier=True)


ENTRIES = (_entry("map", "over IoU .5:.95", 1), _entry("map50", "at IoU .5", 2))
