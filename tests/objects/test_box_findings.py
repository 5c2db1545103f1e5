"""Findings about boxes that are stored otherwise than expected: nobody should have to guess why all values are 0."""

import json
from pathlib import Path

import numpy as np
import pytest

from oodlit.objects import BoxFiles, ObjectResults, evaluate_files

NAMES = ["cat", "dog", "bird", "cow"]
SIDE = 100


def coordinates(seed: int, count: int = 40) -> np.ndarray:
    """x, y, width and height of objects all over their image."""
    random = np.random.default_rng(seed)
    size = random.uniform(10, 40, (count, 2))
    return np.hstack([random.uniform(0, 1, (count, 2)) * (SIDE - size), size]).round(1)


def evaluated(
    folder: Path,
    *,
    of_id=lambda box, kind: (box, kind),
    of_near=lambda box: box,
    of_objects=lambda box, number: box,
    side: int = SIDE,
) -> ObjectResults:
    """Every object of both sets has a box on it; the functions change how boxes are stored."""
    files = {}
    for seed, (name, names) in enumerate({"val": NAMES, "near": ["zebra"]}.items()):
        content: dict = {"images": [], "categories": [], "annotations": []}
        content["categories"] = [{"id": n + 1, "name": text} for n, text in enumerate(names)]
        boxes = []
        for n, box in enumerate(coordinates(seed).tolist()):
            kind = n % 4 + 1 if name == "val" else 1
            content["images"].append({"id": n, "width": side, "height": side})
            content["annotations"].append({"id": n, "image_id": n, "category_id": kind, "bbox": of_objects(box, n)})
            stored, label = of_id(box, kind) if name == "val" else (of_near(box), 1)
            boxes.append({"image_id": n, "category_id": label, "bbox": stored, "score": 0.9, "g": float(n)})
            boxes.append({"image_id": n, "category_id": label, "bbox": stored, "score": 0.8, "g": float(n)})
        (folder / f"{name}.json").write_text(json.dumps(content))
        (folder / f"{name}_boxes.json").write_text(json.dumps(boxes))
        files[name] = BoxFiles(folder / f"{name}_boxes.json", folder / f"{name}.json")
    return evaluate_files(files["val"], {"near": files["near"]}, scores=["g"], t_star=0.1, bootstrap=0, id_name="val")


def test_boxes_as_expected_have_no_finding(tmp_path: Path) -> None:
    assert evaluated(tmp_path).run.findings == []


def test_corners_in_place_of_sides(tmp_path: Path) -> None:
    results = evaluated(tmp_path, of_near=lambda box: [box[0], box[1], box[0] + box[2], box[1] + box[3]])
    (found,) = results.run.findings
    assert found.kind == "places"
    assert found.text.startswith("data set 'near': ")
    assert "of 80 boxes reach beyond their image" in found.text
    loaded = ObjectResults.load(results.save(tmp_path / "saved"))
    assert loaded.recompute(t_star=0.5).run.findings == [found]


def test_pixels_of_a_smaller_image(tmp_path: Path) -> None:
    (found,) = evaluated(tmp_path, of_near=lambda box: [0.5 * value for value in box]).run.findings
    assert found.kind == "places"
    assert "data set 'near': all 80 boxes lie in the upper left 50% of their image" in found.text


def test_boxes_may_leave_their_image_a_little(tmp_path: Path) -> None:
    assert evaluated(tmp_path, of_near=lambda box: [box[0] - 2, box[1] - 2, box[2] + 4, box[3] + 4]).run.findings == []


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ([2, 3, 4, 1], ", and 60 have a class index that is 1 higher than that of the object. Check"),
        ([4, 1, 2, 3], ", and 60 have a class index that is 1 lower than that of the object. Check"),
        ([4, 3, 2, 1], "have the object's class. Check whether category ids"),  # no shift, but another order
    ],
)
def test_classes_in_another_order(tmp_path: Path, order: list[int], text: str) -> None:
    (found,) = evaluated(tmp_path, of_id=lambda box, kind: (box, order[kind - 1])).run.findings
    assert found.kind == "box_classes"
    assert found.text.startswith("data set 'val': of 80 boxes that hit an object, only 0 have the object's class")
    assert text in found.text


def test_a_confused_detector_is_no_finding(tmp_path: Path) -> None:
    assert evaluated(tmp_path, of_id=lambda box, kind: (box, 1)).run.findings == []  # every fourth is right


def test_percentages_in_annotations_and_predictions(tmp_path: Path) -> None:
    results = evaluated(tmp_path, side=300)
    texts = [found.text for found in results.run.findings]
    assert [found.kind for found in results.run.findings] == ["places"] * 4
    for text, (name, what) in zip(
        texts, [(n, w) for n in ("val", "near") for w in ("80 boxes", "40 objects")], strict=True
    ):
        start = f"data set {name!r}: all coordinates of the {what} in images of at least 150 x 150 pixels are at most 9"
        assert text.startswith(start)
        assert text.endswith("they may be percentages of width and height")


def test_percentages_in_annotations_alone(tmp_path: Path) -> None:
    triple = lambda box: [3 * value for value in box]  # noqa: E731
    results = evaluated(tmp_path, side=300, of_id=lambda box, kind: (triple(box), kind), of_near=triple)
    kinds = [(found.kind, found.text.partition(" in images")[0]) for found in results.run.findings]
    assert kinds == [("places", f"data set {name!r}: all coordinates of the 40 objects") for name in ("val", "near")]


def test_boxes_of_all_of_a_large_image_are_no_percentages(tmp_path: Path) -> None:
    triple = lambda box: [3 * value for value in box]  # noqa: E731
    results = evaluated(
        tmp_path,
        side=300,
        of_id=lambda box, kind: (triple(box), kind),
        of_near=triple,
        of_objects=lambda box, n: triple(box),
    )
    assert results.run.findings == []


def test_a_few_relative_objects_among_others(tmp_path: Path) -> None:
    results = evaluated(tmp_path, of_objects=lambda box, n: [v / SIDE for v in box] if n == 7 else box)
    assert [found.kind for found in results.run.findings] == ["places"] * 2
    for found, name in zip(results.run.findings, ("val", "near"), strict=True):
        assert found.text.startswith(f"data set {name!r}: 1 of 40 objects seem to be fractions of width and height")
        assert found.text.endswith("in an image of 100 x 100")


@pytest.mark.parametrize(("every", "number"), [(20, 4), (40, 0)])
def test_a_few_relative_boxes_among_others(tmp_path: Path, every: int, number: int) -> None:
    boxes = iter(range(10**6))

    def some(box: list[float]) -> list[float]:
        return [v / SIDE for v in box] if next(boxes) % every == 0 else box

    texts = [found.text for found in evaluated(tmp_path, of_near=some).run.findings]
    assert [text.partition(" seem")[0] for text in texts] == [f"data set 'near': {number} of 80 boxes"] * bool(number)
