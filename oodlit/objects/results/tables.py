"""Boxes, images and objects of a run as three tables, from which every metric can be computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError, NonFiniteScoreError
from oodlit.base.roles import Role
from oodlit.metrics.numerics.ranking import to_float64
from oodlit.objects.detections import CORNERS, Detections
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.metrics.matching import Objects, best_overlaps
from oodlit.objects.metrics.scored_boxes import ScoredBoxes
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.results.files.score_table import check_detector_names
from oodlit.results.info import DatasetInfo, id_dataset
from oodlit.results.names import some

BOXES = ["key", "dataset", "image", "index", *CORNERS, "confidence", "prediction", "object", "overlap"]
IMAGES = ["key", "dataset", "width", "height", "boxes", "objects"]
OBJECTS = ["dataset", "image", "object", "class", "is_crowd", *CORNERS]
NOT_ANNOTATED = -1


@dataclass(frozen=True, eq=False)
class ObjectSet:
    """A data set of a run: predicted boxes, annotated objects, and the OOD scores of the boxes.

    Args:
        info: Name and role: ID for one data set, OOD for every split.
        detections: All boxes, including those below t*.
        annotations: The objects; None = none, which is only possible for the ID set.
        scores: OOD scores by detector, higher = more in-distribution, each of shape (boxes,).
    """

    info: DatasetInfo
    detections: Detections
    annotations: Annotations | None = None
    scores: Mapping[str, Tensor | np.ndarray] = field(default_factory=dict)


class Tables(NamedTuple):
    """Tables of a run with one row per box, image or object, sorted by data set and key.

    Args:
        boxes: `key` (`dataset/image#index`), `dataset`, `image`, `index`, corners in pixels, `confidence`,
            `prediction` (ID class, -1 = unknown), `object` (id of the object that it overlaps most, "" = none),
            `overlap`, and one column of scores per detector.
        images: `key`, `dataset`, `width`, `height` (0 = unknown), number of `boxes` and of `objects` (-1 = not
            annotated).
        objects: `dataset`, `image`, `object` (its id), `class`, `is_crowd`, corners in pixels.
        notes: Remarks about the tables.
    """

    boxes: pd.DataFrame
    images: pd.DataFrame
    objects: pd.DataFrame
    notes: list[str]


def make_tables(sets: Sequence[ObjectSet], detectors: Sequence[str], class_names: Sequence[str] = ()) -> Tables:
    """Make the tables of all data sets of a run.

    Args:
        sets: One with role ID, and the OOD splits.
        detectors: Names of the scores.
        class_names: The ID classes in the order of the logits; empty = unknown.

    Raises:
        InvalidArgumentError: Roles, names or lengths are wrong, or an OOD split has no annotations.
        DataError: An image has no annotations, or an ID object has a class that the network does not know.
        NonFiniteScoreError: A score is NaN.
    """
    id_dataset([entry.info for entry in sets])
    check_detector_names(detectors)
    if taken := sorted({*BOXES} & {*detectors}):
        raise InvalidArgumentError(f"detector names must not be columns of the table of boxes; rename {some(taken, 9)}")
    parts = [_of_set(entry, detectors, class_names) for entry in sets]
    return Tables(
        boxes=pd.concat([part.boxes for part in parts], ignore_index=True),
        images=pd.concat([part.images for part in parts], ignore_index=True),
        objects=pd.concat([part.objects for part in parts], ignore_index=True),
        notes=[note for part in parts for note in part.notes],
    )


def objects_of(frame: pd.DataFrame, images: Sequence[str], class_names: Sequence[str] = ()) -> Objects:
    """Convert a table of objects; classes are positions in `class_names`, -1 = not among them."""
    number = {key: position for position, key in enumerate(images)}
    code = {name: position for position, name in enumerate(class_names)}
    return Objects(
        frame[CORNERS].to_numpy(dtype=np.float64),
        frame["image"].map(number).to_numpy(dtype=np.int64),
        np.array([code.get(name, -1) for name in frame["class"]], dtype=np.int64),
    )


def scored_boxes(tables: Tables, dataset: str, class_names: Sequence[str], settings: ObjectSettings) -> ScoredBoxes:
    r"""Select the boxes of a data set with a confidence of at least t\*."""
    boxes = tables.boxes[(tables.boxes["dataset"] == dataset) & (tables.boxes["confidence"] >= settings.t_star)]
    images = tables.images[tables.images["dataset"] == dataset].reset_index(drop=True)
    rows = tables.objects[tables.objects["dataset"] == dataset]
    objects = objects_of(rows, images["key"].tolist(), class_names)
    return ScoredBoxes(dataset, boxes.reset_index(drop=True), images, objects, settings)


def _of_set(entry: ObjectSet, detectors: Sequence[str], class_names: Sequence[str]) -> Tables:
    info, found = entry.info, entry.detections.to("cpu")
    if info.role not in (Role.ID, Role.OOD):
        raise InvalidArgumentError(f"data set {info.name!r}: expected the role id or ood, got {info.role}")
    if entry.annotations is None and info.role is Role.OOD:
        raise InvalidArgumentError(
            f"data set {info.name!r}: no annotations were given, but every OOD split requires annotated objects"
        )
    if wrong := [key for key in found.keys if not key.startswith(f"{info.name}/")]:
        raise InvalidArgumentError(
            f"data set {info.name!r}: expected every key to begin with '{info.name}/', got {wrong[0]!r}"
        )
    objects, notes = _objects(entry, class_names)
    sizes = torch.zeros(found.num_images, 2, dtype=torch.int64) if found.sizes is None else found.sizes
    order = sorted(range(found.num_images), key=lambda position: found.keys[position])
    images = pd.DataFrame(
        {
            "key": pd.Series(found.keys, dtype="str"),
            "dataset": pd.Series([info.name] * found.num_images, dtype="str"),
            "width": sizes[:, 0],
            "height": sizes[:, 1],
            "boxes": found.counts.numpy(),
            "objects": NOT_ANNOTATED,
        }
    )
    images = images.iloc[order].reset_index(drop=True)
    if entry.annotations is not None:
        counts = objects["image"].value_counts()
        images["objects"] = images["key"].map(counts).fillna(0).astype(np.int64)
        images = _with_sizes(images, entry.annotations)
    return Tables(_boxes(entry, found, objects, detectors), images, objects, notes)


def _with_sizes(images: pd.DataFrame, annotations: Annotations) -> pd.DataFrame:
    """Fill in image sizes from the annotations, and check that they agree with the sizes of the detections."""
    known = dict(zip(annotations.keys, annotations.sizes.tolist(), strict=True))
    stated = np.array([known[key] for key in images["key"]], dtype=np.int64).reshape(-1, 2)
    own = images[["width", "height"]].to_numpy()
    differ = (own != stated).any(axis=1) & (own > 0).all(axis=1)
    if differ.any():
        first = int(np.flatnonzero(differ)[0])
        here, there = (" x ".join(map(str, sizes[first].tolist())) for sizes in (own, stated))
        raise DataError(
            f"{int(differ.sum())} images do not have the annotated size (width x height of the first,"
            f" {images['key'].iloc[first]}: {here} in the predictions, {there} in the annotations); predict on images"
            " of the annotated size, or rescale the boxes and sizes"
        )
    return images.assign(width=stated[:, 0], height=stated[:, 1])


def _objects(entry: ObjectSet, class_names: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The objects of the images of the run, sorted."""
    found = entry.annotations
    if found is None:
        empty = pd.DataFrame({name: pd.Series(dtype="float64" if name in CORNERS else "str") for name in OBJECTS})
        return empty.astype({"is_crowd": bool}), [
            f"{entry.info.name} has no annotations, so no box counts as hitting an object"
        ]
    seen = set(entry.detections.keys)
    if lost := sorted(seen - set(found.keys)):
        raise DataError(
            f"data set {entry.info.name!r}: {len(lost)} of {len(seen)} images have no annotations (first:"
            f" {', '.join(lost[:3])}); expected keys `{found.dataset}/IMAGE_ID` with the image ids of the annotations"
        )
    names = [found.class_names[label] for label in found.labels.tolist()]
    if entry.info.role is Role.ID and class_names and (other := sorted(set(names) - set(class_names))):
        raise DataError(
            f"data set {entry.info.name!r} has objects of classes that are not in class_names ({some(other, 5)});"
            f" class_names: {some(class_names, 8)}. Correct class_names, or remove these objects"
        )
    frame = pd.DataFrame(
        {
            "dataset": pd.Series([entry.info.name] * len(found), dtype="str"),
            "image": pd.Series([found.keys[image] for image in found.image.tolist()], dtype="str"),
            "object": pd.Series(found.ids, dtype="str"),
            "class": pd.Series(names, dtype="str"),
            "is_crowd": found.is_crowd.numpy(),
            **{name: found.boxes[:, column].numpy() for column, name in enumerate(CORNERS)},
        }
    )
    notes = list(found.notes)
    if missing := found.num_images - len(seen):
        notes.append(
            f"{entry.info.name}: the run has {len(seen)} of {found.num_images} annotated images; the metrics ignore"
            " the remaining annotated images"
        )
    if entry.info.role is Role.OOD and (known := found.classes_like(class_names)):
        notes.append(
            f"{entry.info.name}: objects of classes with the name of an ID class count as unknown: {', '.join(known)}"
        )
    frame = frame[frame["image"].isin(seen)] if missing else frame
    return frame.sort_values(["image", "object"], kind="stable").reset_index(drop=True), notes


def _boxes(entry: ObjectSet, found: Detections, objects: pd.DataFrame, detectors: Sequence[str]) -> pd.DataFrame:
    number = {key: position for position, key in enumerate(found.keys)}
    target = Objects(objects[CORNERS].to_numpy(dtype=np.float64), objects["image"].map(number).to_numpy(dtype=np.int64))
    corners = found.boxes.double().numpy()
    best = best_overlaps(corners, found.image.numpy(), target)
    ids = np.append(objects["object"].to_numpy(dtype=object), "")
    frame = pd.DataFrame(
        {
            "key": pd.Series(found.box_keys, dtype="str"),
            "dataset": pd.Series([entry.info.name] * len(found), dtype="str"),
            "image": pd.Series([found.keys[image] for image in found.image.tolist()], dtype="str"),
            "index": found.numbers.numpy(),
            **{name: corners[:, column] for column, name in enumerate(CORNERS)},
            "confidence": found.confidence.double().numpy(),
            "prediction": found.classes.numpy(),
            "object": pd.Series(ids[best.objects], dtype="str"),
            "overlap": best.overlaps,
            **{name: _scores(entry, name, found) for name in detectors},
        }
    )
    return frame.sort_values(["image", "index"], kind="stable").reset_index(drop=True)


def _scores(entry: ObjectSet, detector: str, found: Detections) -> np.ndarray:
    if detector not in entry.scores:
        raise InvalidArgumentError(f"data set {entry.info.name!r} has no scores of {detector!r}")
    value = entry.scores[detector]
    array = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.itemsize > 8 and array.dtype.kind == "f":
        array = to_float64(array, f"scores of {detector!r}")
    array = array.astype(np.float64)
    if array.shape != (len(found),):
        raise InvalidArgumentError(
            f"data set {entry.info.name!r}: expected scores of {detector!r} of shape ({len(found)},), got {array.shape}"
        )
    if np.isnan(array).any():
        rows = np.flatnonzero(np.isnan(array))
        first = ", ".join(found.box_keys[row] for row in rows[:3].tolist())
        raise NonFiniteScoreError(
            f"detector {detector!r} returned NaN for {len(rows)} of {len(array)} boxes of {entry.info.name!r}"
            f" (first: {first}); NaN cannot be ranked, so omit or repair this detector"
        )
    return array
