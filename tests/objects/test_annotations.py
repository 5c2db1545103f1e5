"""The reader of COCO annotations: every kind of id, images without objects, and what does not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects import read_annotations


def coco() -> dict[str, Any]:
    """Three images, the last without objects; category ids with gaps, annotation id 0, no area."""
    return {
        "info": {"year": 2026},
        "images": [
            {"id": 139, "width": 64, "height": 48, "file_name": "000000000139.jpg"},
            {"id": 285, "width": 32, "height": 32, "file_name": "000000000285.jpg"},
            {"id": 632, "width": 16, "height": 16},
        ],
        "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}, {"id": 13, "name": "zebra"}],
        "annotations": [
            {"id": 0, "image_id": 139, "category_id": 13, "bbox": [1, 2, 10.5, 20]},
            {"id": 7, "image_id": 139, "category_id": 90, "bbox": [0, 0, 64, 48], "iscrowd": 1, "area": 3072.0},
            {"id": 3, "image_id": 285, "category_id": 13, "bbox": [4, 4, 8, 8], "iscrowd": 0},
        ],
    }


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "near.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    found = read_annotations(written(tmp_path, coco()), "near")
    assert found.keys == ("near/139", "near/285", "near/632")
    assert found.boxes.tolist() == [[1, 2, 11.5, 22], [0, 0, 64, 48], [4, 4, 12, 12]]
    assert found.image.tolist() == [0, 0, 1]
    assert [found.class_names[label] for label in found.labels] == ["zebra", "toothbrush", "zebra"]
    assert found.is_crowd.tolist() == [False, True, False]
    assert found.counts.tolist() == [2, 1, 0]
    assert found.sizes.tolist() == [[64, 48], [32, 32], [16, 16]]
    assert found.ids == ("0", "7", "3")
    assert found.file_names == ("000000000139.jpg", "000000000285.jpg", "")
    assert found.classes_like(["Zebra", "person"]) == ["zebra"]
    assert repr(found) == "Annotations('near', 3 objects, 3 images, 3 classes)"


def as_text(content: dict[str, Any], width: int = 0) -> dict[str, Any]:
    for image in content["images"]:
        image["id"] = str(image["id"]).zfill(width)
    for entry in content["annotations"]:
        entry["image_id"] = str(entry["image_id"]).zfill(width)
    return content


@pytest.mark.parametrize("change", [as_text, lambda c: as_text(c, 12)])
def test_ids_may_be_text_and_have_leading_zeros(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    expected = read_annotations(written(tmp_path, coco()), "near")
    found = read_annotations(written(tmp_path, change(coco())), "near")
    assert found.boxes.tolist() == expected.boxes.tolist()
    assert found.image.tolist() == expected.image.tolist()
    assert [found.image_ids.find(value) for value in (139, "139", "000000000285", "632", 5)] == [0, 0, 1, 2, None]


def test_numbers_find_texts_with_leading_zeros(tmp_path: Path) -> None:
    content = as_text(coco(), 12)
    for entry in content["annotations"]:
        entry["image_id"] = int(entry["image_id"])
    assert read_annotations(written(tmp_path, content), "near").image.tolist() == [0, 0, 1]


def test_classes_follow_names_never_ids(tmp_path: Path) -> None:
    names = ["zebra", "cat", "toothbrush"]
    found = read_annotations(written(tmp_path, coco()), "near", class_names=names)
    assert found.class_names == tuple(names)
    assert found.labels.tolist() == [0, 2, 0]
    assert found.category_ids == ("13", "", "90")
    assert [found.categories.find(value) for value in (13, "90", 1)] == [0, 2, None]


def test_images_without_any_object(tmp_path: Path) -> None:
    found = read_annotations(written(tmp_path, coco() | {"annotations": [], "categories": []}), "near")
    assert len(found) == 0
    assert found.boxes.shape == (0, 4)
    assert found.counts.tolist() == [0, 0, 0]


def changed(where: str, position: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content[where][position].update(values)


def without(where: str, position: int, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content[where][position].pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("annotations", 1, id=0), r"1 repeated annotation id \(first: annotations\[1\], id 0\)"),
        (changed("images", 1, id=139), r"1 repeated image id \(first: images\[1\]: 139\)"),
        (
            changed("annotations", 0, image_id=5),
            r"1 annotation of unknown images \(first: annotations\[0\], id 0: image_id 5",
        ),
        (changed("annotations", 0, category_id=2), r"1 annotation of unknown categories .* category_id 2"),
        (
            changed("annotations", 0, bbox=[60, 2, 10, 20]),
            r"1 box beyond the border of the image \(first: .* in an image of 64 x 48\); repair=True",
        ),
        (changed("annotations", 0, bbox=[5, 2, 0, 20]), r"1 box without area .*repair=True \(--repair\) drops them"),
        (changed("annotations", 0, bbox=[5, 2, 3]), r"1 annotation without box .*bbox \[5, 2, 3\]"),
        (changed("annotations", 0, iscrowd=2), r"iscrowd is neither 0 nor 1 \(first: annotations\[0\], id 0: 2\)"),
        (changed("annotations", 0, id=1.5), r"1 annotation without id \(first: annotations\[0\]: 1.5\); ids are"),
        (changed("annotations", 0, bbox=[0, 0, 10**400, 1]), r"1 annotation without box"),
        (changed("images", 2, width=10**400), r"image without size"),
        (changed("images", 2, width=1 << 63), r"image without size"),
        (changed("images", 2, width=None), r"image without size \(first: images\[2\], id 632: width None"),
        (changed("images", 2, id=True), r"image without id \(first: images\[2\]: True"),
        (without("images", 0, "height"), r"image without size"),
        (changed("categories", 1, id=1), r"1 repeated category id \(first: categories\[1\]: 1\)"),
        (changed("categories", 1, name="person"), "1 repeated category name "),
        (without("categories", 1, "name"), r"1 item of 'categories' without id or name"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    content = coco()
    change(content)
    with pytest.raises(DataError, match=message):
        read_annotations(written(tmp_path, content), "near")


def test_all_kinds_are_told_at_once(tmp_path: Path) -> None:
    content = coco()
    content["annotations"][0]["image_id"] = 5
    content["annotations"][1]["image_id"] = 6
    content["annotations"][2]["bbox"] = [1, 1, 1, 0]
    with pytest.raises(
        DataError, match=r"near.json: 2 annotations of unknown images \(.*image_id 5\)\. 1 box without area"
    ):
        read_annotations(written(tmp_path, content), "near")


def test_repair_cuts_and_tells(tmp_path: Path) -> None:
    content = coco()
    content["annotations"][0]["bbox"] = [60, 2, 10, 20]
    content["annotations"][2]["bbox"] = [5, 2, 0, 20]
    found = read_annotations(written(tmp_path, content), "near", repair=True)
    assert found.boxes.tolist() == [[60, 2, 64, 22], [0, 0, 64, 48]]
    assert found.notes == (
        "near.json: 1 boxes were cropped at the border of the image",
        "near.json: 1 boxes without area were dropped",
    )
    # Up to a pixel is rounding: left as it is.
    content["annotations"] = [{"id": 0, "image_id": 139, "category_id": 13, "bbox": [-0.5, 0, 65, 48]}]
    assert read_annotations(written(tmp_path, content), "near").boxes.tolist() == [[-0.5, 0, 64.5, 48]]


MARKS = [
    {"ignore": 1}, {"ignore": True}, {"difficult": 1}, {"ignore": 0, "difficult": 1},
    {"ignored": True}, {"is_difficult": 1}, {"attributes": {"difficult": True, "occluded": False}},
    {"extra": {"ignore": 1}},
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
def test_ignored_annotations_are_no_objects(tmp_path: Path, mark: dict[str, Any]) -> None:
    content = coco()
    content["annotations"][0] |= mark
    with pytest.raises(DataError, match=r"1 annotation is marked ignore or difficult .*drops these annotations"):
        read_annotations(written(tmp_path, content), "near")
    found = read_annotations(written(tmp_path, content), "near", repair=True)
    whole = read_annotations(written(tmp_path, coco()), "near")
    assert found.ids == whole.ids[1:]
    assert found.notes[0].startswith("near.json: 1 annotations marked ignore or difficult were dropped. Predicted")
    content["annotations"][0] |= dict.fromkeys(mark, 0) | {"attributes": {"difficult": False, "ignored": "0"}}
    assert read_annotations(written(tmp_path, content), "near").boxes.tolist() == whole.boxes.tolist()


@pytest.mark.parametrize(
    "mark", [{"isGroupOf": True}, {"is_crowd": 1}, {"IsGroupOf": 1}, {"attributes": {"crowd": True}}]
)
def test_marks_of_groups_are_crowds(tmp_path: Path, mark: dict[str, Any]) -> None:
    content = coco()
    before = read_annotations(written(tmp_path, content), "near").is_crowd.tolist()
    place = before.index(False)
    content["annotations"][place] |= mark
    before[place] = True
    assert read_annotations(written(tmp_path, content), "near").is_crowd.tolist() == before
    content["annotations"][place] |= {"is_crowd": "yes"}
    with pytest.raises(DataError, match=r"iscrowd is neither 0 nor 1 .*'yes'"):
        read_annotations(written(tmp_path, content), "near")


def test_relative_boxes_are_refused(tmp_path: Path) -> None:
    content = coco()
    for entry, box in zip(
        content["annotations"], ([0.1, 0.1, 0.5, 0.8], [0, 0, 1, 1], [0.2, 0.3, 0.1, 0.1]), strict=True
    ):
        entry["bbox"] = box
    for repair in (False, True):
        with pytest.raises(
            DataError, match=r"3 boxes are given relative to the size of their image .*multiply the boxes by width"
        ):
            read_annotations(written(tmp_path, content), "near", repair=repair)
    content["annotations"][1]["bbox"] = [5, 2, 20, 20]  # one tool in pixels, another one in shares
    with pytest.raises(DataError, match=r"2 boxes are given relative to the size of their image"):
        read_annotations(written(tmp_path, content), "near")
    for entry in content["annotations"]:
        entry["bbox"] = [0, 0, 1, 1]  # pixels: an object in the corner
    assert len(read_annotations(written(tmp_path, content), "near")) == 3


@pytest.mark.parametrize("width", [64.5, "64", float("nan"), float("inf"), 0.0, -64, True])
def test_sizes_are_whole_numbers_of_pixels(tmp_path: Path, width: Any) -> None:
    content = coco()
    for image in content["images"]:
        image |= {"width": float(image["width"]), "height": float(image["height"])}  # as pandas saves them
    found = read_annotations(written(tmp_path, content), "near")
    assert found.sizes.tolist() == read_annotations(written(tmp_path, coco()), "near").sizes.tolist()
    content["images"][1]["width"] = width
    with pytest.raises(DataError, match=r"1 image without size .*expected width and height in whole pixels"):
        read_annotations(written(tmp_path, content), "near")


def test_files_that_are_no_annotations(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_annotations(tmp_path / "none.json", "near")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        read_annotations(tmp_path / "bad.json", "near")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not valid JSON"):
        read_annotations(tmp_path / "deep.json", "near")
    with pytest.raises(DataError, match="got a list, as in files of predictions"):
        read_annotations(written(tmp_path, []), "near")
    with pytest.raises(DataError, match=r"missing lists: categories \(found: images, annotations\)"):
        read_annotations(written(tmp_path, {"images": [], "annotations": []}), "near")
    with pytest.raises(InvalidArgumentError, match="got 'a/b'"):
        read_annotations(written(tmp_path, coco()), "a/b")
    with pytest.raises(InvalidArgumentError, match="class_names: expected every name once, got"):
        read_annotations(written(tmp_path, coco()), "near", class_names=["cat", "cat"])
    with pytest.raises(
        DataError, match=r"2 annotations of classes that are not in class_names .*'zebra'\); .* toothbrush"
    ):
        read_annotations(written(tmp_path, coco()), "near", class_names=["toothbrush"])


def test_a_byte_order_mark_and_ids_of_any_length(tmp_path: Path) -> None:
    content, long = coco(), "0" + "1" * 5000  # Python reads no integers of so many digits
    content["images"][0]["id"] = long
    for entry in content["annotations"]:
        entry["image_id"] = long[1:] if entry["image_id"] == 139 else entry["image_id"]
    path = tmp_path / "near.json"
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_annotations(path, "near").image.tolist() == [0, 0, 1]
