"""Predicted boxes from files: COCO's results (JSON), or Parquet with logits and features per box."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch
from torch import Tensor

from oodlit.base.errors import DataError, UnknownNameError
from oodlit.base.outputs import Outputs
from oodlit.base.sizes import check_parquet
from oodlit.objects.detections import CORNERS, Detections
from oodlit.objects.files.annotations import TOLERANCE, Annotations, is_bbox, is_number, read_json
from oodlit.objects.files.box_bounds import are_outside, check_relative
from oodlit.objects.files.file_problems import Problems
from oodlit.objects.files.identifiers import Identifiers, id_text

_ENOUGH = 20
"""Smallest number of boxes that shows whether logits are in the order of the classes."""


@dataclass(frozen=True)
class Classes:
    """The ID classes, in the order of the logits.

    Args:
        names: Their names.
        ids: Their ids in files of predictions, as text; empty = unknown.

    Example:
        >>> classes = Classes(("cat", "dog"), ("17", "18"))
        >>> classes.find(18), classes.find("cat"), classes.find(0)
        (1, 0, None)
    """

    names: tuple[str, ...]
    ids: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, annotations: Annotations) -> "Classes":
        """The classes of the annotations of the ID set."""
        return cls(annotations.class_names, annotations.category_ids)

    def find(self, value: object) -> int | None:
        """Position of a class by its id or name; None if there is none. Ids are not indices."""
        if isinstance(value, str) and value in self.names:
            return self.names.index(value)
        return Identifiers(self.ids).find(value)


class Predictions(NamedTuple):
    """Content of a file.

    Args:
        detections: The boxes.
        scores: The requested columns, each of shape (boxes,).
    """

    detections: Detections
    scores: dict[str, Tensor]


@dataclass
class _Rows:
    """Content of both formats, one row per box."""

    image_ids: Sequence[str]
    corners: np.ndarray
    confidence: np.ndarray
    categories: Sequence[Any] | None
    columns: Mapping[str, np.ndarray]
    logits: np.ndarray | None = None
    features: np.ndarray | None = None


def read_predictions(
    path: str | os.PathLike[str],
    images: Annotations | str,
    *,
    classes: Classes | None = None,
    scores: Sequence[str] = (),
) -> Predictions:
    """Read predicted boxes.

    A `.json` file is a list of COCO results: `image_id`, `category_id`, `bbox` (x, y, width, height), `score`. A
    `.parquet` file has columns `image_id`, `xmin`, `ymin`, `xmax`, `ymax`, `confidence` and, optionally, `category_id`
    (id or name of the class), `logits` (lists over the ID classes, without background) and `features` (lists). Both can
    have further numbers per box, such as OOD scores, which are read on request. Boxes of an image are numbered in the
    order of the file. Without `category_id`, the class is that of the largest logit.

    Args:
        path: The file.
        images: The annotations of the same images. Without annotations, the name of the data set: the images are then
            those of the file, and images without boxes are unknown.
        classes: The ID classes; None = unknown, as are predicted classes that only have an id.
        scores: Names of further columns to read, higher = more in-distribution.

    Returns:
        The boxes of all images, and the requested columns.

    Raises:
        DataError: The file is not readable or contradicts the annotations: boxes of images without annotations or of
            classes that are not ID classes, a wrong number of logits, invalid boxes. One error reports all problems.
        UnknownNameError: A requested column is missing.
    """
    source = Path(path)
    rows = _of_parquet(source, scores) if source.suffix == ".parquet" else _of_json(source, scores)
    problems = Problems(source)
    keys, image = _images(rows.image_ids, images, problems)
    predictions = _predictions(rows, classes, problems)
    _check_boxes(rows, problems)
    if not isinstance(images, str):
        _check_places(rows.corners, image, images, problems)
    problems.check()
    outputs = None
    if len(image) and not (rows.logits is None and rows.features is None):
        logits, features = (None if part is None else torch.from_numpy(part) for part in (rows.logits, rows.features))
        outputs = Outputs(logits, features)
    detections = Detections(
        torch.from_numpy(rows.corners),
        torch.from_numpy(rows.confidence),
        torch.from_numpy(image),
        keys,
        sizes=None if isinstance(images, str) else images.sizes,
        predictions=None if predictions is None else torch.from_numpy(predictions),
        outputs=outputs,
    )
    return Predictions(detections, {name: torch.from_numpy(rows.columns[name]) for name in scores})


def _images(ids: Sequence[str], images: Annotations | str, problems: Problems) -> tuple[list[str], np.ndarray]:
    """Keys of all images, and the position of the image of every box."""
    place: dict[str, int | None]
    if isinstance(images, str):
        texts = sorted(set(ids))
        place, keys = {text: position for position, text in enumerate(texts)}, [f"{images}/{text}" for text in texts]
    else:
        place, keys = {text: images.image_ids.find(text) for text in set(ids)}, list(images.keys)
        if lost := sorted(text for text, position in place.items() if position is None):
            found = ", ".join(key.partition("/")[2] for key in keys[:3])
            problems.add(
                f"of {len(place)} images with boxes are not annotated",
                f"image_id {lost[0]!r}",
                f"the annotations of {images.dataset!r} have {len(keys)} images, first ids: {found or 'none'}",
                count=len(lost),
            )
    numbers = (place[text] for text in ids)
    return keys, np.array([-1 if number is None else number for number in numbers], dtype=np.int64)


def _predictions(rows: _Rows, classes: Classes | None, problems: Problems) -> np.ndarray | None:
    """Predicted classes of the boxes; None = the class of the largest logit, or unknown."""
    if classes is None:
        return None
    if rows.logits is not None and len(rows.logits) and rows.logits.shape[1] != len(classes.names):
        width, wanted = rows.logits.shape[1], len(classes.names)
        hint = (
            "remove the logit of the background class"
            if width == wanted + 1
            else "expected one logit per ID class; correct class_names (--class_names) or the logits"
        )
        found = f"{width} logits for {wanted} ID classes"
        problems.add("boxes have the wrong number of logits", found, hint, count=len(rows.logits))
    if rows.categories is None:
        return None
    place = {value: classes.find(value) for value in dict.fromkeys(rows.categories)}
    if lost := [value for value, position in place.items() if position is None]:
        shown = ", ".join(classes.names[:5]) + (", ..." if len(classes.names) > 5 else "")
        ids = f" with ids {', '.join(classes.ids[:5])}{', ...' if len(classes.ids) > 5 else ''}" if classes.ids else ""
        problems.add(
            f"of {len(rows.categories)} boxes have a class that is not an ID class",
            f"category_id {lost[0]!r}",
            f"ID classes are {shown}{ids}",
            count=sum(place[value] is None for value in rows.categories),
        )
        return None
    predictions = np.array([place[value] for value in rows.categories], dtype=np.int64)
    if rows.logits is not None and len(predictions) >= _ENOUGH:
        differ = rows.logits.argmax(axis=1) != predictions
        if differ.mean() > 0.5:
            problems.add(
                f"of {len(predictions)} boxes have their largest logit at a class other than category_id",
                f"box {differ.argmax()}",
                "pass class_names (--class_names) in the order of the logits",
                count=int(differ.sum()),
            )
    return predictions


def _check_boxes(rows: _Rows, problems: Problems) -> None:
    for name, vectors in (("logits", rows.logits), ("features", rows.features)):
        if vectors is not None and (wrong := np.flatnonzero(~np.isfinite(vectors).all(axis=1))).size:
            problems.add(f"boxes have {name} that are not finite", f"box {wrong[0]}", count=wrong.size)
    finite = np.isfinite(rows.corners).all(axis=1) & np.isfinite(rows.confidence)
    unlikely = (rows.confidence < 0) | (rows.confidence > 1)
    inverted = (rows.corners[:, 2:] < rows.corners[:, :2]).any(axis=1)
    corners = "expected (xmin, ymin, xmax, ymax) in Parquet, and [x, y, width, height] in JSON"
    shares = "expected values from 0 to 1; divide percentages by 100, or convert logits to probabilities"
    for wrong, kind, hint in (
        (~finite, "boxes have values that are not finite", ""),
        (finite & unlikely, "confidences are out of range", shares),
        (finite & inverted, "boxes have a negative width or height", corners),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            example = f"box {first}: {rows.corners[first].tolist()}, confidence {rows.confidence[first]:g}"
            problems.add(kind, example, hint, count=int(wrong.sum()))


def _check_places(corners: np.ndarray, image: np.ndarray, images: Annotations, problems: Problems) -> None:
    """Check that boxes are in pixels of the annotated images."""
    rows = np.flatnonzero((image >= 0) & np.isfinite(corners).all(axis=1))
    sizes, boxes = images.sizes.numpy()[image[rows]], corners[rows]
    outside = are_outside(boxes, sizes, tolerance=TOLERANCE)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        problems.add(
            "boxes lie completely outside of the image",
            f"box {rows[row]}: {boxes[row].tolist()} in an image of {sizes[row][0]} x {sizes[row][1]}",
            "expected coordinates in pixels of the annotated images",
            count=int(outside.sum()),
        )
    else:
        check_relative(boxes, sizes, problems)


def _of_json(path: Path, scores: Sequence[str]) -> _Rows:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected results in COCO's format, a list of boxes; got {type(entries).__name__}")
    problems = Problems(path)
    images: list[str] = []
    categories: list[Any] = []
    numbers: list[list[float]] = []
    for position, entry in enumerate(entries):
        entry = entry if isinstance(entry, Mapping) else {}  # noqa: PLW2901 - other values have no entries
        image, box = id_text(entry.get("image_id")), entry.get("bbox")
        values: list[Any] = [entry.get(name) for name in ("score", *scores)]
        if image is None or not is_bbox(box) or not all(map(is_number, values)):
            what = {name: entry.get(name) for name in ("image_id", "bbox", "score", *scores)}
            needed = f"expected image_id, a bbox of four numbers, and numbers for {', '.join(('score', *scores))}"
            problems.add("boxes are incomplete", f"box {position}: {what}", needed)
            continue
        images.append(image)
        categories.append(entry.get("category_id"))
        x, y, width, height = box
        numbers.append([x, y, x + width, y + height, *values])
    problems.check()
    table = np.array(numbers, dtype=np.float64).reshape(-1, 5 + len(scores))
    columns = {name: table[:, 5 + place] for place, name in enumerate(scores)}
    return _Rows(images, table[:, :4], table[:, 4], _categories(categories, path), columns)


def _categories(values: list[Any], path: Path) -> list[Any] | None:
    """Ids or names of classes; None if no box has any."""
    known = [value for value in values if value is not None]
    if 0 < len(known) < len(values):
        raise DataError(f"{path}: {len(known)} of {len(values)} boxes have a category_id; expected all or none")
    if wrong := [value for value in known if id_text(value) is None]:
        raise DataError(f"{path}: expected category_id to be text or an integer, got {wrong[0]!r}")
    return values if known else None


def _of_parquet(path: Path, scores: Sequence[str]) -> _Rows:
    try:
        check_parquet(path, path, packed=path.stat().st_size)
        with pq.ParquetFile(path) as file:  # `read_table` adds columns for folders such as `split=near`
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error})") from error
    names = table.column_names
    if not names or (not len(table) and {"image_id", "confidence"} <= set(names)):
        # pandas saves a table without rows with other types, or without columns
        return _Rows([], np.zeros((0, 4)), np.zeros(0), None, {name: np.zeros(0) for name in scores})
    if missing := [name for name in ("image_id", *CORNERS, "confidence") if name not in names]:
        raise DataError(f"{path}: missing columns {', '.join(missing)}; found {', '.join(names)}")
    if "score" in scores and "score" not in names:  # the name in COCO's results
        table, names = table.append_column("score", table["confidence"]), [*names, "score"]
    for name in scores:
        UnknownNameError.check(f"column of {path.name}", name, names)
    for name in ("image_id", *CORNERS, "confidence", *scores):
        if table[name].null_count:
            raise DataError(f"{path}: column {name!r} has no value in {table[name].null_count} of {len(table)} rows")
    images = [id_text(value) for value in table["image_id"].to_pylist()]
    if None in images:
        raise DataError(f"{path}: expected image_id to be text or integers, got {table['image_id'].type}")
    return _Rows(
        [image for image in images if image is not None],
        np.stack([_numbers(table, name, path) for name in CORNERS], axis=1),
        _numbers(table, "confidence", path),
        _categories(table["category_id"].to_pylist(), path) if "category_id" in names else None,
        {name: _numbers(table, name, path) for name in scores},
        _vectors(table, "logits", path),
        _vectors(table, "features", path),
    )


def _numbers(table: pa.Table, name: str, path: Path) -> np.ndarray:
    if not _is_numeric(table[name].type):
        raise DataError(f"{path}: expected numbers in column {name!r}, got {table[name].type}")
    return np.asarray(table[name].to_numpy().astype(np.float64))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _vectors(table: pa.Table, name: str, path: Path) -> np.ndarray | None:
    """A column of lists of one length, shape (boxes, length), at least float32; None if there is none."""
    if name not in table.column_names:
        return None
    column = table[name].combine_chunks()
    lists = isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    if not (lists and _is_numeric(column.type.value_type)):
        raise DataError(f"{path}: expected lists of numbers in column {name!r}, got {column.type}")
    if lost := column.null_count + column.flatten().null_count:
        raise DataError(f"{path}: column {name!r} has {lost} missing lists or numbers")
    values = column.flatten().to_numpy(zero_copy_only=False)
    width = len(values) // len(column) if len(column) else 0
    if len(values) != width * len(column) or any(n != width for n in pa.compute.list_value_length(column).to_pylist()):
        raise DataError(f"{path}: the lists in column {name!r} differ in length; expected equal lengths")
    if len(column) and not width:
        raise DataError(f"{path}: lists in column {name!r} are empty; omit the column")
    return np.asarray(values.astype(np.promote_types(values.dtype, np.float32)).reshape(len(column), width))
