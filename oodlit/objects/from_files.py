"""Evaluation from files: annotations and predicted boxes of any object detector, without a model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from oodlit.backbones.heads import gives
from oodlit.base.errors import DataError, InvalidArgumentError, NonFiniteScoreError
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.base.roles import Role
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.fitting import GivenDetectors, make_statistics, name_detectors
from oodlit.objects.detections import Detections
from oodlit.objects.files.annotations import Annotations, read_annotations
from oodlit.objects.files.predictions import Classes, Predictions, read_predictions
from oodlit.objects.fit_rows import FitOn, ImageObjects, fit_rows
from oodlit.objects.metrics.matching import Objects
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.metrics.thresholds import best_f1_confidence
from oodlit.objects.results.results import ObjectResults
from oodlit.objects.results.tables import ObjectSet
from oodlit.results import Finding
from oodlit.results.info import DatasetInfo
from oodlit.scoring.applicable import applicable
from oodlit.scoring.scoring import Scoring

_Path = str | os.PathLike[str]


_BATCH = 4096
_VERIFIED = 256
"""Number of boxes of a data set that verify the head."""
_GIVEN = ("logits", "features")
_PARQUET = (
    "write the boxes as Parquet with their logits or features (COCO JSON cannot contain them, see docs/objects.md), or"
    " pass the names of score columns (scores=[...], --scores)"
)


class BoxFiles(NamedTuple):
    """The files of one data set.

    Args:
        predictions: Predicted boxes, `.json` or `.parquet`; see `oodlit.objects.read_predictions`.
        annotations: COCO annotations; None = none, which is only possible for ID images.
    """

    predictions: _Path
    annotations: _Path | None = None


def evaluate_files(
    id_files: BoxFiles,
    splits: Mapping[str, BoxFiles],
    *,
    train: BoxFiles | None = None,
    detectors: GivenDetectors = (),
    scores: Sequence[str] = (),
    head: Head | None = None,
    class_names: Sequence[str] | None = None,
    t_star: float | None = None,
    fit_on: FitOn = "predicted",
    repair: bool = False,
    id_name: str = "id",
    **settings: Any,
) -> ObjectResults:
    r"""Evaluate an object detector from files.

    Args:
        id_files: Images with known classes.
        splits: OOD splits by name: every annotated object is unknown.
        train: Boxes of training images, for detectors with a fit; `fit_on="matched"` requires annotations.
        detectors: Detectors of logits and features, or their names; those that do not apply are skipped with a warning.
        scores: Columns of the files with OOD scores, higher = more in-distribution. "confidence" and "score" are the
            object detector's own confidence, named "score" in the results.
        head: The class layer of the network, for detectors that need it.
        class_names: The ID classes in the order of the logits. None = those of the ID annotations, in their order.
        t_star: Confidence t\* below which boxes are dropped. None = by the best F1 on the ID set, which requires
            annotations and predicted classes.
        fit_on: "predicted" = all boxes of training images above t\*, labeled with their predicted class; "matched" =
            those that hit an object of their class.
        repair: Whether to crop annotated boxes at the border of their image, and to drop those without area or marked
            `ignore` or `difficult`.
        id_name: Name of the ID set.
        settings: Other fields of `ObjectSettings`.

    Returns:
        The results; `run.t_star_rule` states where t\* comes from.

    Raises:
        InvalidArgumentError: Options contradict each other.
        DataError: A file is not valid; see `read_annotations` and `read_predictions`.
        RequirementError: No detector applies.
    """
    _check(splits, bool(detectors or scores), id_name)
    scores = ["score" if name == "confidence" else name for name in scores]  # as in COCO's results
    known = _annotations(id_files, id_name, class_names, repair=repair)
    classes = None if class_names is None else Classes(tuple(class_names))
    classes = classes if known is None else Classes.of(known)
    objects = {id_name: known} | {name: _annotations(splits[name], name, repair=repair) for name in splits}
    files = {id_name: id_files, **splits}
    found = {name: _read(files[name], name, objects[name], classes, scores) for name in files}
    rule = "best F1 on the ID set" if t_star is None else "given"
    cut = f1_confidence(found[id_name].detections, known) if t_star is None else t_star
    chosen = ObjectSettings(t_star=cut).changed(**settings)
    named = name_detectors(detectors) if detectors else {}
    if twice := sorted(named.keys() & set(scores)):
        raise InvalidArgumentError(f"score columns share names with detectors: {', '.join(twice)}; rename the columns")
    rows = _training_rows(train, named, classes, chosen, fit_on=fit_on, repair=repair) if named and train else None
    scored, not_applicable, failed = _scores(found, named, rows, head, fit_on=fit_on)
    return ObjectResults.from_sets(
        [
            ObjectSet(
                DatasetInfo(name, Role.ID if name == id_name else Role.OOD),
                part.detections,
                objects[name],
                {**part.scores, **scored[name]},
            )
            for name, part in found.items()
        ],
        class_names=() if classes is None else classes.names,
        settings=chosen,
        run={
            "t_star_rule": rule,
            "fit_on": fit_on if train is not None else None,
            "not_applicable": not_applicable | failed,
            "findings": [
                Finding("failed", f"detector {name!r} is missing from the results, because it {why}")
                for name, why in failed.items()
            ],
            "files": {name: _paths(entry) for name, entry in files.items()},
            "train_files": None if train is None else _paths(train),
        },
    )


def _check(splits: Mapping[str, BoxFiles], has_scores: bool, id_name: str) -> None:
    if not splits:
        raise InvalidArgumentError("expected at least one OOD split, such as splits={'near': BoxFiles(...)}; got none")
    if not has_scores:
        raise InvalidArgumentError("expected detectors=... or scores=... (names of columns with scores), got neither")
    if id_name in splits:
        raise InvalidArgumentError(f"id_name={id_name!r} is also the name of an OOD split; choose another name")
    if missing := [name for name, files in splits.items() if files.annotations is None]:
        raise InvalidArgumentError(
            f"split {missing[0]!r}: every OOD split requires annotations; pass BoxFiles(predictions, annotations)"
        )


def f1_confidence(detections: Detections, annotations: Annotations | None) -> float:
    r"""Compute t\* of the ID set by the best F1; see `oodlit.objects.metrics.best_f1_confidence`.

    Raises:
        InvalidArgumentError: There are no annotations, no objects, or no predicted classes.
    """
    if annotations is None or not len(annotations):
        raise InvalidArgumentError(
            "t_star: the default (best F1) requires annotated ID objects; pass annotations, or set t_star=0.25"
        )
    if len(detections) and int(detections.classes.min()) < 0:
        raise InvalidArgumentError(
            "t_star: the default (best F1) requires predicted classes of ID boxes; add category_id, or set t_star, such"
            " as 0.25"
        )
    # Keys and corners order boxes of equal confidence, so that the order in the file does not matter.
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
    """Read the class layer from a `.safetensors` file with `weight` (classes, features) and, optionally, `bias`.

    Raises:
        DataError: The file is not readable, or has no `weight`.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read as safetensors ({error})") from error
    if "weight" not in tensors:
        raise DataError(f"{path}: expected a tensor named 'weight', found {', '.join(tensors) or 'none'}")
    return Head(tensors["weight"], tensors.get("bias"))


def _paths(files: BoxFiles) -> dict[str, str | None]:
    return {key: None if path is None else str(path) for key, path in files._asdict().items()}


def _annotations(
    files: BoxFiles, name: str, class_names: Sequence[str] | None = None, *, repair: bool
) -> Annotations | None:
    if files.annotations is None:
        return None
    return read_annotations(files.annotations, name, class_names=class_names, repair=repair)


def _read(
    files: BoxFiles, name: str, objects: Annotations | None, classes: Classes | None, scores: Sequence[str] = ()
) -> Predictions:
    return read_predictions(files.predictions, name if objects is None else objects, classes=classes, scores=scores)


def _training_rows(
    train: BoxFiles,
    detectors: Mapping[str, Detector],
    classes: Classes | None,
    settings: ObjectSettings,
    *,
    fit_on: FitOn,
    repair: bool,
) -> Outputs | None:
    """The outputs that detectors are fitted on; None if there are none and no detector needs them."""
    objects = _annotations(train, "train", None if classes is None else classes.names, repair=repair)
    boxes = _read(train, "train", objects, classes).detections
    if fit_on == "matched" and objects is None:
        raise InvalidArgumentError("fit_on='matched' requires annotations in train=BoxFiles(...) (--train_annotations)")
    matched = ImageObjects(objects) if fit_on == "matched" and objects is not None else None
    rows = fit_rows(boxes, cut=settings.t_star, objects=matched)
    if rows is None and any(detector.required_statistics for detector in detectors.values()):
        kept = len(boxes.above(settings.t_star))
        at_least = f"boxes have a confidence of at least t* = {settings.t_star:g}"
        if len(boxes) and boxes.outputs is None:
            what = "the boxes have no logits or features; add logits or features"
        elif kept:
            what = (
                f"no box to fit on: {kept} {at_least}, but none of them hits an object of its class"
                " (fit_on='matched'); check the annotations and classes, pass fit_on='predicted'"
            )
        else:
            what = f"no box to fit on: {kept} of {len(boxes)} {at_least}; lower t_star, pass another file"
        raise DataError(f"{train.predictions}: {what}, or choose detectors that are not fitted")
    if rows is not None and rows.labels is not None and int(rows.labels.min()) < 0:
        names = ", and pass class_names (--class_names) or annotations of the ID set" if classes is None else ""
        raise InvalidArgumentError(f"{train.predictions}: the boxes have no predicted classes; add category_id{names}")
    return rows


def _scores(
    found: Mapping[str, Predictions],
    detectors: Mapping[str, Detector],
    rows: Outputs | None,
    head: Head | None,
    *,
    fit_on: FitOn,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, str], dict[str, str]]:
    """Scores by data set and detector, and why detectors were not applicable or failed."""
    if not detectors:
        return {name: {} for name in found}, {}, {}
    parts = {name: part.detections.outputs for name, part in found.items() if len(part.detections)}
    if rows is not None:
        parts["the training boxes"] = rows
    facts = facts_of(parts, name="the file", num_train=0 if rows is None else len(rows), head=head)
    usable, reasons = applicable(
        detectors,
        replace(facts, predicted_labels=fit_on == "predicted"),
        way_out="" if facts.available > {"labels"} else _PARQUET,
    )
    check_alike(usable, parts)
    if head is not None:
        check_head(head, parts)
    scoring = Scoring(usable, strict=False)
    fit_detectors(scoring, rows, head)
    scored = {name: score_boxes(scoring, part.detections, name) for name, part in found.items()}
    kept = {name: {d: scores[d] for d in scoring.active} for name, scores in scored.items()}
    return kept, reasons, scoring.failed


def facts_of(parts: Mapping[str, Outputs | None], *, name: str, num_train: int, head: Head | None) -> BackboneFacts:
    """Describe the network by the outputs of the boxes of several data sets."""
    logits, features = (_held(parts, kind) for kind in _GIVEN)
    given = [kind for kind, held in zip(_GIVEN, (logits, features), strict=True) if held]
    return BackboneFacts(
        name=name,
        width=next((part.shape[1] for part in features.values()), 0),
        num_classes=next((part.shape[1] for part in logits.values()), 0),
        head_problem="" if head is not None else f"{name} has none",
        signed_features=any(bool((part < 0).any()) for part in features.values()),
        num_train=num_train,
        available=frozenset({"labels", *given}),
    )


def _held(parts: Mapping[str, Outputs | None], kind: str) -> dict[str, Tensor]:
    """Return logits or features of the data sets that have them."""
    return {name: value for name, part in parts.items() if (value := getattr(part, kind, None)) is not None}


def check_alike(detectors: Mapping[str, Detector], parts: Mapping[str, Outputs | None]) -> None:
    """Check that all data sets have what detectors read, in vectors of one length.

    Raises:
        DataError: Outputs are missing or their lengths differ.
    """
    for kind in _GIVEN:
        readers = [name for name, detector in detectors.items() if kind in detector.required_needs]
        lengths = {name: held.shape[1] for name, held in _held(parts, kind).items()}
        if readers and (missing := [name for name in parts if name not in lengths]):
            raise DataError(
                f"{missing[0]}: no {kind} found. Add {kind} to these predictions, or omit the detectors that require"
                f" {kind} ({', '.join(readers[:5])}). Sets with {kind}: {', '.join(lengths) or 'none'}"
            )
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise DataError(f"{kind} of the boxes differ in length: {shown}; all boxes must come from one network")


def check_head(head: Head, parts: Mapping[str, Outputs | None]) -> None:
    """Check that the class layer computes the logits of the boxes from their features.

    Raises:
        DataError: It belongs to another network.
    """
    layer = nn.Linear(head.width, head.num_classes)
    layer.load_state_dict({"weight": head.weight, "bias": head.offset})
    logits = _held(parts, "logits")
    for name, features in _held(parts, "features").items():
        if features.shape[1] != head.width:
            raise DataError(f"head: expected features of width {head.width}, got width {features.shape[1]} in {name}")
        if name in logits and not gives(layer, features[:_VERIFIED], logits[name][:_VERIFIED]):
            raise DataError(
                f"head: weight and bias do not reproduce the logits of {name} from the features; expected weight"
                " (classes, features) and bias of the class layer, without background, in the order of the logits"
            )


def fit_detectors(scoring: Scoring, rows: Outputs | None, head: Head | None) -> None:
    """Fit detectors on rows of outputs; those without a fit only receive the head. A detector that fails is dropped."""
    statistics = make_statistics(list(scoring.detectors.values()))
    if statistics and rows is not None:
        for start in range(0, len(rows), _BATCH):
            statistics.update(rows.select(slice(start, start + _BATCH)))
    for name in scoring.active:
        scoring.fit(name, statistics, head)


def score_boxes(scoring: Scoring, detections: Detections, dataset: str) -> dict[str, Tensor]:
    """Score all boxes with every detector, higher = more in-distribution, each of shape (boxes,).

    A detector that fails or returns NaN is dropped, here and for the data sets that follow.
    """
    parts: dict[str, list[Tensor]] = {name: [torch.zeros(0)] for name in scoring.active}
    for start in range(0, 0 if detections.outputs is None else len(detections), _BATCH):
        assert detections.outputs is not None  # otherwise the range is empty
        outputs = detections.outputs.select(slice(start, start + _BATCH))
        for name, scores in scoring.score(outputs, dataset).items():
            if wrong := int(scores.isnan().sum()):
                error = NonFiniteScoreError(f"{wrong} of {len(scores)} boxes have the score NaN")
                scoring.leave_out(name, error, dataset, outputs)
            parts[name].append(scores.detach().cpu())
    return {name: torch.cat(parts[name]) for name in scoring.active}
