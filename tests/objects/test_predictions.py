"""Readers of predicted boxes: both formats give the same, and what does not fit is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oodlit.errors import DataError, UnknownNameError
from oodlit.objects import Annotations, Classes, read_annotations, read_predictions

from .test_annotations import coco, written

CLASSES = Classes(("cat", "dog", "bird"), ("17", "18", "90"))


@pytest.fixture
def near(tmp_path: Path) -> Annotations:
    return read_annotations(written(tmp_path, coco()), "near")


def results() -> list[dict[str, Any]]:
    """Boxes of two of three images."""
    return [
        {"image_id": 285, "category_id": 18, "bbox": [1, 2, 3, 4], "score": 0.5, "energy": -1.0},
        {"image_id": 139, "category_id": 90, "bbox": [0, 0, 8, 8], "score": 0.9, "energy": 2},
        {"image_id": 285, "category_id": 17, "bbox": [5.5, 5, 1, 1], "score": 0.1, "energy": 3.5},
    ]


def columns() -> dict[str, Any]:
    found = results()
    box = np.array([entry["bbox"] for entry in found], dtype=float)
    return {
        "image_id": [entry["image_id"] for entry in found],
        "xmin": box[:, 0],
        "ymin": box[:, 1],
        "xmax": box[:, 0] + box[:, 2],
        "ymax": box[:, 1] + box[:, 3],
        "confidence": [entry["score"] for entry in found],
        "energy": [float(entry["energy"]) for entry in found],
        "logits": [[0.0, 3.0, 1.0], [0.0, 0.0, 1.0], [2.0, 1.0, 1.0]],
        "features": [np.float32([1, 2]), np.float32([3, 4]), np.float32([5, 6])],
    }


def as_json(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(content))
    return path


def as_parquet(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "boxes.parquet"
    pq.write_table(pa.table(content), path)
    return path


def test_both_formats_give_the_same(tmp_path: Path, near: Annotations) -> None:
    one = read_predictions(as_json(tmp_path, results()), near, classes=CLASSES, scores=["energy"])
    two = read_predictions(as_parquet(tmp_path, columns()), near, classes=CLASSES, scores=["energy"])
    for found in (one, two):
        assert found.detections.keys == near.keys
        assert found.detections.counts.tolist() == [1, 2, 0]
        assert found.detections.box_keys == ["near/285#0", "near/139#0", "near/285#1"]
        assert found.detections.boxes.tolist() == [[1, 2, 4, 6], [0, 0, 8, 8], [5.5, 5, 6.5, 6]]
        assert found.detections.classes.tolist() == [1, 2, 0]
        assert found.scores["energy"].tolist() == [-1.0, 2.0, 3.5]
    assert one.detections.outputs is None
    assert two.detections.outputs is not None
    assert two.detections.outputs.require("features").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert two.detections.outputs.require("logits").dtype.itemsize == 8


def test_ids_fit_however_they_are_written(tmp_path: Path, near: Annotations) -> None:
    content = results()
    for entry in content:
        entry["image_id"] = f"{entry['image_id']:012d}"
        entry["category_id"] = str(entry["category_id"])
    found = read_predictions(as_json(tmp_path, content), near, classes=CLASSES).detections
    assert found.counts.tolist() == [1, 2, 0]
    assert found.classes.tolist() == [1, 2, 0]
    by_name = columns() | {"category_id": ["dog", "bird", "cat"], "image_id": ["285", "139", "0285"]}
    assert read_predictions(as_parquet(tmp_path, by_name), near, classes=CLASSES).detections.classes.tolist() == [
        1,
        2,
        0,
    ]


def test_without_annotations_images_are_those_of_the_file(tmp_path: Path) -> None:
    found = read_predictions(as_json(tmp_path, results()), "train").detections
    assert found.keys == ("train/139", "train/285")
    assert found.classes.tolist() == [-1, -1, -1]


def test_no_box_at_all(tmp_path: Path, near: Annotations) -> None:
    empty = {name: pa.array([], pa.table(columns())[name].type) for name in columns()}
    for path in (as_json(tmp_path, []), as_parquet(tmp_path, empty)):
        found = read_predictions(path, near).detections
        assert len(found) == 0
        assert found.counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("names", [[], list(columns())])
def test_no_box_saved_by_pandas(tmp_path: Path, near: Annotations, names: list[str]) -> None:
    path = tmp_path / "boxes.parquet"
    pd.DataFrame(columns=names).to_parquet(path)
    found = read_predictions(path, near, classes=CLASSES, scores=["energy"])
    assert len(found.detections) == 0
    assert found.detections.keys == near.keys
    assert found.scores["energy"].shape == (0,)
    pd.DataFrame(columns=["x"]).to_parquet(path)  # no boxes at all, but of something else
    with pytest.raises(DataError, match="missing columns"):
        read_predictions(path, near)


def test_folders_are_no_columns(tmp_path: Path, near: Annotations) -> None:
    folder = tmp_path / "confidence=0.5" / "groups=zebra" / "category_id=17"
    folder.mkdir(parents=True)
    path = as_parquet(folder, columns())
    found = read_predictions(path, near, classes=CLASSES).detections
    assert found.confidence.tolist() == [0.5, 0.9, 0.1]
    assert found.classes.tolist() == [1, 2, 0]  # of the logits
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_predictions(Path(folder.parent.rename(tmp_path / "boxes.parquet")), near)


def test_classes_that_do_not_fit_are_refused(tmp_path: Path, near: Annotations) -> None:
    content = results()
    content[1]["category_id"] = 3
    told = r"1 of 3 boxes has a class that is not an ID class .*category_id 3\); ID classes are cat, dog, bird"
    with pytest.raises(DataError, match=told):
        read_predictions(as_json(tmp_path, content), near, classes=CLASSES)
    wide = columns() | {"logits": [[0.0] * 4] * 3}
    with pytest.raises(DataError, match=r"4 logits for 3 ID classes\); remove the logit of the background class"):
        read_predictions(as_parquet(tmp_path, wide), near, classes=CLASSES)
    many = {name: list(values) * 10 for name, values in columns().items()} | {"category_id": [17, 17, 18] * 10}
    with pytest.raises(DataError, match=r"of 30 boxes have their largest logit at a class other .*\(first: box 0"):
        read_predictions(as_parquet(tmp_path, many), near, classes=CLASSES)


def test_images_that_do_not_fit_are_refused(tmp_path: Path, near: Annotations) -> None:
    content = [entry | {"image_id": entry["image_id"] + 1} for entry in results()]
    with pytest.raises(
        DataError, match=r"2 of 2 images with boxes are not annotated .*140.* 'near' have 3 images, first ids: 139"
    ):
        read_predictions(as_json(tmp_path, content), near)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": None}, "1 box is incomplete .*'score': None"),
        ({"bbox": [1, 2, 3]}, "box is incomplete"),
        ({"image_id": 1.5}, "box is incomplete"),
        ({"score": True}, "1 box is incomplete .*'score': True"),
        ({"score": 10**400}, "1 box is incomplete"),
        ({"bbox": [0, 0, 10**400, 1]}, "1 box is incomplete"),
        (
            {"bbox": [70, 1, 5, 5]},
            r"1 box lies completely outside of the image \(first: box 1: \[70.0, .*coordinates in pixels",
        ),
        ({"bbox": [-9, 1, 5, 5]}, r"1 box lies completely outside of the image"),
        ({"bbox": [5, 5, -1, 2]}, "1 box has a negative width or height .* \\[x, y, width, height\\] in JSON"),
        ({"category_id": None}, "2 of 3 boxes have a category_id; expected all or none"),
        ({"category_id": [1]}, r"category_id to be text or an integer, got \[1\]"),
    ],
)
def test_boxes_that_do_not_fit_are_refused(
    tmp_path: Path, near: Annotations, change: dict[str, Any], message: str
) -> None:
    content = results()
    content[1] |= change
    with pytest.raises(DataError, match=message):
        read_predictions(as_json(tmp_path, content), near, classes=CLASSES)


def test_columns_that_do_not_fit_are_refused(tmp_path: Path, near: Annotations) -> None:
    def refused(message: str, **change: Any) -> None:
        content = {name: value for name, value in (columns() | change).items() if value is not None}
        with pytest.raises(DataError, match=message):
            read_predictions(as_parquet(tmp_path, content), near)

    refused(r"missing columns xmin, confidence", xmin=None, confidence=None)
    refused("column 'ymin' has no value in 1 of 3 rows", ymin=[1.0, None, 2.0])
    refused("numbers in column 'ymin', got string", ymin=["1", "2", "3"])
    refused("the lists in column 'logits' differ in length", logits=[[1.0], [1.0, 2.0], [1.0]])
    refused("lists of numbers in column 'logits', got double", logits=[1.0, 2.0, 3.0])
    refused(r"lists of numbers in column 'logits', got list<.*: string>", logits=[["1", "2"]] * 3)
    refused("column 'logits' has 2 missing lists or numbers", logits=[[1.0, None], None, [1.0, 2.0]])
    refused("lists in column 'logits' are empty", logits=pa.array([[]] * 3, type=pa.list_(pa.float32())))
    refused(r"1 box has logits that are not finite \(first: box 1\)", logits=[[1.0], [np.nan], [1.0]])
    refused("2 boxes have features that are not finite", features=[[np.inf], [-np.inf], [1.0]])
    refused(r"category_id .* got \[17\]", category_id=[[17], [18], [17]])
    refused(r"category_id .* got 17\.0", category_id=[17.0, 18.0, 17.0])
    refused("2 of 3 boxes have a category_id; expected all or none", category_id=[17, None, 17])
    refused("1 box has values that are not finite", confidence=[0.1, float("nan"), 0.2])
    refused("image_id to be text or integers, got double", image_id=[1.0, 2.0, 3.0])
    with pytest.raises(UnknownNameError, match=r"unknown column 'enrgy' of boxes\.parquet; did you mean 'energy'"):
        read_predictions(as_parquet(tmp_path, columns()), near, scores=["enrgy"])
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_predictions(tmp_path / "bad.parquet", near)
    with pytest.raises(DataError, match="a list of boxes; got dict"):
        read_predictions(as_json(tmp_path, {}), near)


def test_relative_boxes_are_refused(tmp_path: Path, near: Annotations) -> None:
    shares = [entry | {"bbox": [value / 64 for value in entry["bbox"]]} for entry in results()]
    with pytest.raises(DataError, match=r"3 boxes are given relative to the size of their image .* multiply the boxes"):
        read_predictions(as_json(tmp_path, shares), near, classes=CLASSES)
    mixed = [*shares, *results() * 2]  # a file of two tools
    with pytest.raises(DataError, match=r"3 boxes are given relative to the size of their image"):
        read_predictions(as_json(tmp_path, mixed), near, classes=CLASSES)
    # A few boxes of a pixel are pixels; so are whole numbers, and images of unknown size.
    assert len(read_predictions(as_json(tmp_path, [shares[0], *results() * 4]), near).detections) == 13
    corner = [results()[0] | {"bbox": [0, 0, 1, 1]}]
    assert len(read_predictions(as_json(tmp_path, corner), near).detections) == 1
    assert len(read_predictions(as_json(tmp_path, shares), "near").detections) == 3


@pytest.mark.parametrize(("scores", "count"), [([50, 90, 10], 3), ([0.5, 1.001, 0.1], 1), ([0.5, 0.9, -0.1], 1)])
def test_confidences_are_shares(tmp_path: Path, near: Annotations, scores: list[float], count: int) -> None:
    content = [entry | {"score": score} for entry, score in zip(results(), scores, strict=True)]
    refused = rf"{count} confidences? (is|are) out of range \(first: box .*, confidence .*\); expected values .* divide"
    with pytest.raises(DataError, match=refused):
        read_predictions(as_json(tmp_path, content), near, classes=CLASSES)
    with pytest.raises(DataError, match=refused):
        read_predictions(as_parquet(tmp_path, columns() | {"confidence": [*map(float, scores)]}), near)


def test_confidences_at_the_ends_of_their_range(tmp_path: Path, near: Annotations) -> None:
    content = columns() | {"confidence": [0.0, 1.0, 0.5]}
    assert read_predictions(as_parquet(tmp_path, content), near).detections.confidence.tolist() == [0.0, 1.0, 0.5]
