"""The best object of a box, against loops over exact fractions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError
from oodlit.objects.metrics import Objects, best_overlaps, matching

from .support import Plain, arrays, reference_best, reference_iou, scenes


@given(scenes())
def test_best_overlaps_are_those_of_loops(scene: Plain) -> None:
    found = best_overlaps(*arrays(scene))
    for box, number, overlap in zip(scene.boxes, found.objects, found.overlaps, strict=True):
        expected, value = reference_best(box, scene.objects)
        assert overlap == pytest.approx(float(value), abs=1e-12)
        if expected is None:
            assert number == -1
        else:  # of objects with the same corners either may be taken
            assert scene.objects[number][:2] == scene.objects[expected][:2]


@given(scenes(min_objects=1))
def test_only_objects_of_the_class_count(scene: Plain) -> None:
    classes = np.array([box.label for box in scene.boxes], dtype=np.int64)
    found = best_overlaps(*arrays(scene), classes=classes)
    for box, overlap in zip(scene.boxes, found.overlaps, strict=True):
        same = [entry for entry in scene.objects if entry[2] == box.label]
        assert overlap == pytest.approx(float(reference_best(box, same)[1]), abs=1e-12)


@given(scenes(), st.integers(1, 5))
def test_parts_do_not_matter(scene: Plain, pairs: int) -> None:
    whole = best_overlaps(*arrays(scene))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_PAIRS", pairs)
        parts = best_overlaps(*arrays(scene))
    assert all((a == b).all() for a, b in zip(whole, parts, strict=True))


def test_a_pixel_more_and_boxes_without_area() -> None:
    a, b = np.array([[0.0, 0, 9, 9]]), np.array([[5.0, 5, 14, 14]])
    assert matching.iou_pairs(a, b, extent=1)[0] == pytest.approx(float(reference_iou(a[0], b[0], 1)))
    point = np.array([[3.0, 3, 3, 3]])
    assert matching.iou_pairs(point, point).tolist() == [0.0]
    assert best_overlaps(point, np.array([0]), Objects(point, np.array([0]))).objects.tolist() == [-1]


def test_classes_on_one_side_alone_are_refused() -> None:
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match="classes of boxes, but not of objects"):
        best_overlaps(np.zeros((1, 4)), one, Objects(np.zeros((1, 4)), one), classes=one)


def test_many_boxes_are_matched_in_seconds() -> None:
    """8000 images with 20 boxes and 5 objects each: a loop over pairs would take minutes."""
    made = np.random.default_rng(0)
    image, at = np.repeat(np.arange(8000), 20), np.repeat(np.arange(8000), 5)
    corner, other = made.uniform(0, 500, (len(image), 2)), made.uniform(0, 500, (len(at), 2))
    objects = Objects(np.concatenate([other, other + 80], axis=1), at)
    found = best_overlaps(np.concatenate([corner, corner + 90], axis=1), image, objects)
    assert (found.objects >= 0).mean() > 0.3
    near = found.objects >= 0
    assert (at[found.objects[near]] == image[near]).all()
