"""Evaluation from files alone: annotations and predicted boxes of anyone's detector, without a model."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects.detections import Detections
from oodlit.objects.files.annotations import Annotations, read_annotations
from oodlit.objects.files.predictions import Classes, Predictions, read_predictions
from oodlit.objects.fit_rows import FitOn, ImageObjects, fit_rows
from oodlit.objects.metrics.matching import Objects
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.metrics.thresholds import best_f1_confidence
from oodlit.objects.results.results import ObjectResults
from oodlit.objects.results.tables import ObjectSet
from oodlit.objects.scoring import applicable, check_alike, check_head, facts_of, fit_detectors, score_boxes
from oodlit.outputs import Head
from oodlit.results import Finding
from oodlit.results.info import DatasetInfo
from oodlit.roles import Role

__all__ = ["BoxFiles", "evaluate_files", "f1_confidence", "read_head"]

_Path = str | os.PathLike[str]


class BoxFiles(NamedTuple):
    """The files of one data set.

    Args:
        predictions: Predicted boxes, `.json` or `.parquet`; see `oodlit.objects.read_predictions`.
        annotations: COCO annotations; None = there are none, which no OOD split can do without.
    """

    predictions: _Path
    annotations: _Path | None = None


def evaluate_files(
    id_files: BoxFiles,
    splits: Mapping[str, BoxFiles],
    *,
    train: BoxFiles | None = None,
    detectors: Sequence[Detector] | Mapping[str, Detector] = (),
    scores: Sequence[str] = (),
    head: Head | None = None,
    class_names: Sequence[str] | None = None,
    t_star: float | None = None,
    fit_on: FitOn = "predicted",
    repair: bool = False,
    id_name: str = "id",
    **settings: Any,
) -> ObjectResults:
    r"""Judge an object detector by its files.

    Args:
        id_files: Images of the classes that the network learnt.
        splits: OOD splits by name: every annotated object there is unknown.
        train: Boxes of training images, for detectors that are fitted; with annotations for `fit_on="matched"`.
        detectors: They score the logits and features of the files; those that do not apply are left out with a warning.
        scores: Columns of the files that are OOD scores already, higher = more in-distribution.
        head: The class layer of the network, for detectors that need it.
        class_names: The ID classes in the order of the logits. None = those of the ID annotations, in their order.
        t_star: Confidence t\* below which boxes are dropped. None = by the best F1 on the ID set, which needs
            annotations and predicted classes.
        fit_on: "predicted" = all boxes of training images from t\* on, labelled with their predicted class; "matched" =
            those that hit an object of their class.
        repair: Whether boxes of annotations that leave their image are cut and those without area left out.
        id_name: Name of the ID set.
        settings: Other fields of `ObjectSettings`.

    Returns:
        The results; `run.t_star_rule` says where t\* comes from.

    Raises:
        InvalidArgumentError: Options do not fit each other.
        DataError: A file does not fit; see `read_annotations` and `read_predictions`.
        RequirementError: No detector applies.
    """
    if not splits:
        raise InvalidArgumentError("no OOD split is given; pass at least one, such as splits={'near': BoxFiles(...)}")
    if not detectors and not scores:
        raise InvalidArgumentError("neither detectors nor columns of scores are given; pass at least one of them")
    if id_name in splits:
        raise InvalidArgumentError(f"id_name={id_name!r}: an OOD split has this name; give another")
    known = _annotations(id_files, id_name, class_names, repair=repair)
    classes = None if class_names is None else Classes(tuple(class_names))
    classes = classes if known is None else Classes.of(known)
    found = {id_name: _read(id_files, id_name, known, classes, scores)}
    objects: dict[str, Annotations | None] = {id_name: known}
    for name, files in splits.items():
        if files.annotations is None:
            raise InvalidArgumentError(f"split {name!r}: annotations are needed; its objects are what is unknown")
        objects[name] = _annotations(files, name, None, repair=repair)
        found[name] = _read(files, name, objects[name], classes, scores)
    if t_star is None:
        t_star, rule = f1_confidence(found[id_name].detections, known), "best F1 on the ID set"
    else:
        rule = "given"
    chosen = ObjectSettings(t_star=t_star).changed(**settings)
    scored, not_applicable, failed = _scores(
        found, detectors, train, head, classes, chosen, fit_on=fit_on, repair=repair
    )
    roles = {name: Role.ID if name == id_name else Role.OOD for name in found}
    return ObjectResults.from_sets(
        [ObjectSet(DatasetInfo(n, roles[n]), found[n].detections, objects[n], scored[n]) for n in found],
        class_names=() if classes is None else classes.names,
        settings=chosen,
        run={
            "t_star_rule": rule,
            "fit_on": fit_on if train is not None else None,
            "not_applicable": not_applicable | failed,
            "findings": [
                Finding("failed", f"detector {n!r} is not among the results: it {why}") for n, why in failed.items()
            ],
            "files": {name: _paths(files) for name, files in {id_name: id_files, **splits}.items()},
            "train_files": None if train is None else _paths(train),
        },
    )


def f1_confidence(detections: Detections, annotations: Annotations | None) -> float:
    r"""t\* of the ID set by the best F1; see `oodlit.objects.metrics.best_f1_confidence`.

    Raises:
        InvalidArgumentError: There are no annotations, no objects, or no predicted classes.
    """
    if annotations is None or not len(annotations):
        raise InvalidArgumentError("t*: the rule of the best F1 needs annotated ID objects; give t_star, such as 0.25")
    if len(detections) and int(detections.classes.min()) < 0:
        raise InvalidArgumentError("t*: the rule of the best F1 needs the predicted classes of ID boxes; give t_star")
    # Boxes of equal confidence have no order of their own: keys and corners give them one, whatever that of the file.
    by_key = torch.tensor(sorted(range(detections.num_images), key=detections.keys.__getitem__)).argsort()
    corners = detections.boxes.double().numpy()
    detections = detections.select(torch.from_numpy(np.lexsort((*corners.T, by_key[detections.image].numpy()))))
    place = {key: position for position, key in enumerate(annotations.keys)}
    own = {place[key]: position for position, key in enumerate(detections.keys)}
    images = annotations.image.tolist()
    rows = [row for row, image in enumerate(images) if image in own]
    return best_f1_confidence(
        detections.boxes.double().numpy(),
        detections.confidence.double().numpy(),
        detections.image.numpy(),
        detections.classes.numpy(),
        Objects(
            annotations.boxes[rows].numpy(),
            np.array([own[images[row]] for row in rows], dtype=np.int64),
            annotations.labels[rows].numpy(),
        ),
        is_crowd=annotations.is_crowd[rows].numpy(),
    )


def read_head(path: _Path) -> Head:
    """The class layer from a `.safetensors` file with `weight` (classes, features) and, if it has one, `bias`.

    Raises:
        DataError: The file is not readable, or has no `weight`.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: not readable as safetensors ({error})") from error
    if "weight" not in tensors:
        raise DataError(f"{path}: 'weight' is missing; there is {', '.join(tensors) or 'nothing'}")
    return Head(tensors["weight"], tensors.get("bias"))


def _paths(files: BoxFiles) -> dict[str, str | None]:
    return {key: None if path is None else str(path) for key, path in files._asdict().items()}


def _annotations(files: BoxFiles, name: str, class_names: Sequence[str] | None, *, repair: bool) -> Annotations | None:
    if files.annotations is None:
        return None
    return read_annotations(files.annotations, name, class_names=class_names, repair=repair)


def _read(
    files: BoxFiles, name: str, objects: Annotations | None, classes: Classes | None, scores: Sequence[str]
) -> Predictions:
    return read_predictions(files.predictions, name if objects is None else objects, classes=classes, scores=scores)


def _scores(
    found: Mapping[str, Predictions],
    detectors: Sequence[Detector] | Mapping[str, Detector],
    train: BoxFiles | None,
    head: Head | None,
    classes: Classes | None,
    settings: ObjectSettings,
    *,
    fit_on: FitOn,
    repair: bool,
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, str]]:
    """Scores of every data set by name, why detectors do not apply, and how others failed."""
    if not detectors:
        return {name: dict(part.scores) for name, part in found.items()}, {}, {}
    named = name_detectors(detectors)
    columns = next(iter(found.values())).scores
    if twice := sorted(named.keys() & columns.keys()):
        raise InvalidArgumentError(f"{twice} are detectors and columns of scores; rename one of them")
    rows = None
    if train is not None:
        objects = _annotations(train, "train", None if classes is None else classes.names, repair=repair)
        boxes = _read(train, "train", objects, classes, ()).detections
        if fit_on == "matched" and objects is None:
            raise InvalidArgumentError("fit_on='matched' needs the annotations of the training images")
        matched = ImageObjects(objects) if fit_on == "matched" and objects is not None else None
        rows = fit_rows(boxes, cut=settings.t_star, objects=matched)
        if rows is None and any(detector.required_statistics for detector in named.values()):
            what = "no logits or features" if len(boxes) and boxes.outputs is None else "no box to fit on"
            n, n_above = len(boxes), len(boxes.above(settings.t_star))
            raise DataError(
                f"{train.predictions}: {what} among {n} boxes, {n_above} of them from t* = {settings.t_star:g} on; give"
                " other files, a lower t_star, or detectors that need no fit"
            )
        if rows is not None and rows.labels is not None and int(rows.labels.min()) < 0:
            raise InvalidArgumentError(f"{train.predictions}: the predicted classes of training boxes are not known")
    parts = {name: part.detections.outputs for name, part in found.items() if len(part.detections)}
    if rows is not None:
        parts["the training boxes"] = rows
    facts = facts_of(parts, name="the file", num_train=0 if rows is None else len(rows), head=head)
    usable, reasons = applicable(named, facts)
    check_alike(usable, parts)
    if head is not None:
        check_head(head, parts)
    from oodlit.scoring.scoring import Scoring  # noqa: PLC0415 - its room brings Lightning, which files do without

    scoring = Scoring(usable, strict=False)
    fit_detectors(scoring, rows, head)
    scored = {name: score_boxes(scoring, part.detections, name) for name, part in found.items()}
    kept = {name: {d: scores[d] for d in scoring.active} for name, scores in scored.items()}
    return {name: {**part.scores, **kept[name]} for name, part in found.items()}, reasons, scoring.failed
