"""Ids are names: integers or text, from 0 or 1, with gaps or leading zeros, in any order, they change no number."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodlit.objects import BoxFiles, ObjectResults, evaluate_files

from .support import Box, Plain, scenes

IDS: dict[str, Callable[[int], Any]] = {
    "from 0": lambda n: n,
    "from 1": lambda n: n + 1,
    "falling, with gaps": lambda n: 900 - 7 * n,
    "text": str,
    "hexadecimal": lambda n: f"{n:04x}f",
    "leading zeros": lambda n: f"{n:012d}",
    "with signs": lambda n: f"a b#{n}/c",
}
CLASSES = ("cat", "dog")


def write(folder: Path, name: str, scene: Plain, style: str, *, backwards: bool) -> BoxFiles:
    """Two files of a scene, with ids of one style in all places."""
    make = IDS[style]
    step = -1 if backwards else 1
    coco = {
        "images": [{"id": make(i), "width": 8, "height": 8} for i in range(scene.n_images)][::step],
        "categories": [{"id": make(n), "name": text} for n, text in enumerate(CLASSES)],
        "annotations": [
            {"id": make(n), "image_id": make(i), "category_id": make(k), "bbox": [x0, y0, x1 - x0, y1 - y0]}
            for n, (i, (x0, y0, x1, y1), k) in enumerate(scene.objects)
        ][::step],
    }
    boxes = []
    for box in scene.boxes:
        x0, y0, x1, y1 = box.corners
        entry = {"image_id": make(box.image), "category_id": make(box.label), "bbox": [x0, y0, x1 - x0, y1 - y0]}
        boxes.append({**entry, "score": box.confidence, "g": box.score})
    (folder / f"{name}.json").write_text(json.dumps(coco))
    (folder / f"{name}_boxes.json").write_text(json.dumps(boxes))
    return BoxFiles(folder / f"{name}_boxes.json", folder / f"{name}.json")


def evaluated(inside: Plain, split: Plain, style: str, *, backwards: bool = False) -> ObjectResults:
    with TemporaryDirectory() as name:
        folder = Path(name)
        known = write(folder, "val", inside, style, backwards=backwards)
        files = {"near": write(folder, "near", split, style, backwards=backwards)}
        return evaluate_files(known, files, scores=["g"], t_star=0.2, bootstrap=0, recall=0.5)


@settings(max_examples=20, deadline=None)
@given(scenes(min_boxes=1), scenes(), st.sampled_from(list(IDS)), st.booleans())
def test_ids_change_no_number(inside: Plain, split: Plain, style: str, backwards: bool) -> None:
    expected = evaluated(inside, split, "from 0")
    found = evaluated(inside, split, style, backwards=backwards)
    tables = [table[~table["metric"].str.startswith("map")] for table in (found.table, expected.table)]
    # COCO's mean average precision ranks boxes of equal confidence, and takes the order of the keys for it.
    pd.testing.assert_frame_equal(*tables, rtol=1e-12)


def test_keys_are_the_ids_of_the_files() -> None:
    scene = Plain([], [(0, (0, 0, 4, 4), 0)], n_images=2)
    found = evaluated(scene, scene, "leading zeros")
    assert [key for key in found.images["key"] if key.startswith("near/")] == ["near/000000000000", "near/000000000001"]
    assert found.value("dismissed", dataset="near", detector="g") != pytest.approx(0)


def test_t_star_and_quality_do_not_see_the_order_of_the_file(tmp_path: Path) -> None:
    # Of the boxes at .5 one is right: first of them, F1 is best there; last of them, at .75.
    objects = [(0, (0, 0, 4, 4), 0), (0, (4, 4, 8, 8), 0)]
    wrong = [Box(0, (0, y, 3, y + 2), 0.5, 0.0) for y in (4, 5, 6)]
    boxes = [Box(0, (0, 0, 4, 4), 0.75, 0.0), Box(0, (4, 4, 8, 8), 0.5, 0.0), *wrong]
    found = []
    for number, order in enumerate((boxes, boxes[::-1], wrong + boxes[:2])):
        (folder := tmp_path / str(number)).mkdir()
        known = write(folder, "val", Plain(order, objects), "text", backwards=False)
        found.append(evaluate_files(known, {"near": known}, scores=["g"], bootstrap=0))
    for other in found[1:]:
        assert other.settings.t_star == found[0].settings.t_star
        pd.testing.assert_frame_equal(other.table, found[0].table, rtol=1e-12)
