"""Open-set metrics: against loops, and what must hold whatever the boxes are."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.objects import metrics as objects
from oodlit.objects.metrics import MatchedBoxes, OpenSet
from oodlit.objects.metrics.open_set_error import nose_boxes_of, nose_of
from oodlit.objects.metrics.unknown_boxes import ap_u_of, average_precision, r_u_of

from .support import SCORES, Box, Plain, matched, reference_open_set, scenes

TAUS = st.sampled_from([-math.inf, *SCORES, 0.75, math.inf])


def values(boxes: MatchedBoxes, tau: float) -> dict[str, float]:
    names = ("p_u", "r_u", "ap_u", "nose", "nose_boxes", "dismissed", "aose")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        return {name: float(getattr(objects, name)(boxes, tau=tau)) for name in names}


def same(first: dict[str, float], second: dict[str, float]) -> bool:
    return all(np.isclose(first[k], second[k], rtol=0, atol=1e-12, equal_nan=True) for k in first)


@given(scenes(), TAUS)
def test_metrics_are_those_of_loops(scene: Plain, tau: float) -> None:
    expected = {k: math.nan if v is None else float(v) for k, v in reference_open_set(scene, tau).items()}
    assert same(values(matched(scene), tau), expected)


@given(scenes(min_objects=1), TAUS, TAUS)
def test_found_and_misclassified_are_one_constant(scene: Plain, one: float, two: float) -> None:
    boxes = matched(scene)
    reached = len(set(boxes.objects[boxes.overlaps >= 0.5].tolist())) / boxes.n_objects
    for tau in (one, two):
        found = values(boxes, tau)
        assert found["r_u"] + found["nose"] == pytest.approx(reached, abs=1e-12)
        assert found["r_u"] + found["nose"] + found["dismissed"] == pytest.approx(1, abs=1e-12)
        assert found["ap_u"] <= found["r_u"] + 1e-12
        assert 0 <= found["nose"] <= min(1, found["nose_boxes"])
    none, every = values(boxes, -math.inf), values(boxes, math.inf)
    assert (none["r_u"], none["nose"]) == (0, pytest.approx(reached))
    assert (every["r_u"], every["nose"], every["nose_boxes"]) == (pytest.approx(reached), 0, 0)


@given(scenes(), TAUS, st.randoms(use_true_random=False))
def test_order_does_not_matter(scene: Plain, tau: float, random) -> None:
    images = list(range(scene.n_images))
    random.shuffle(images)
    boxes = [replace(box, image=images[box.image]) for box in scene.boxes]
    found = [(images[image], corners, label) for image, corners, label in scene.objects]
    random.shuffle(boxes)
    random.shuffle(found)
    assert same(values(matched(Plain(boxes, found, scene.n_images)), tau), values(matched(scene), tau))


@given(scenes(), TAUS, st.sampled_from([2, 3, 7, 1024]))
def test_scale_does_not_matter(scene: Plain, tau: float, scale: int) -> None:
    boxes = [replace(box, corners=tuple(scale * c for c in box.corners)) for box in scene.boxes]
    found = [(image, tuple(scale * c for c in corners), label) for image, corners, label in scene.objects]
    assert values(matched(Plain(boxes, found, scene.n_images)), tau) == pytest.approx(
        values(matched(scene), tau), abs=0, nan_ok=True
    )


@given(scenes(min_objects=1, min_boxes=1), TAUS)
def test_duplicates_are_false_positives_and_count_in_boxes_alone(scene: Plain, tau: float) -> None:
    before = OpenSet(matched(scene), tau)
    hit = np.flatnonzero(before.hits)
    if not len(hit):
        return
    twin = replace(scene.boxes[hit[0]], confidence=0.05)
    after = OpenSet(matched(replace(scene, boxes=[*scene.boxes, twin])), tau)
    assert nose_of(after).value == nose_of(before).value
    assert r_u_of(after).value == r_u_of(before).value
    if twin.score < tau:
        assert len(after.ranked) - after.is_true.sum() == len(before.ranked) - before.is_true.sum() + 1
        assert nose_boxes_of(after).value == nose_boxes_of(before).value
    else:
        assert nose_boxes_of(after).value.value > nose_boxes_of(before).value.value


def test_an_overlap_of_exactly_one_half_hits() -> None:
    scene = Plain([Box(0, (0, 0, 4, 2), 0.9, 0.0)], [(0, (0, 0, 4, 4), 0)])
    boxes = matched(scene)
    assert boxes.overlaps.tolist() == [0.5]
    assert objects.r_u(boxes, tau=1.0) == 1
    assert r_u_of(OpenSet(boxes, 1.0, strict=True)).value.value == 0
    assert objects.r_u(boxes, tau=1.0, iou=0.51) == 0


def test_two_objects_under_one_box_are_one_found() -> None:
    scene = Plain([Box(0, (0, 0, 4, 4), 0.9, 0.0)], [(0, (0, 0, 4, 3), 0), (0, (0, 0, 4, 3), 0)])
    boxes = matched(scene)
    assert objects.r_u(boxes, tau=1.0) == objects.dismissed(boxes, tau=1.0) == 0.5
    # The second best is not tried: the other box is a duplicate.
    scene.boxes.append(Box(0, (0, 0, 4, 4), 0.8, 0.0))
    assert objects.r_u(matched(scene), tau=1.0) == objects.p_u(matched(scene), tau=1.0) == 0.5


def test_one_object_is_found_by_one_box_and_taken_for_known_by_another() -> None:
    here = (0, 0, 4, 4)
    boxes = matched(Plain([Box(0, here, 0.9, 5.0), Box(0, here, 0.2, 0.0)], [(0, here, 0), (0, (6, 6, 8, 8), 0)]))
    assert (objects.r_u(boxes, tau=1.0), objects.nose(boxes, tau=1.0)) == (0.5, 0.0)
    assert (objects.nose_boxes(boxes, tau=1.0), objects.aose(boxes, tau=1.0)) == (0.5, 0)


def test_undefined_is_nan_with_its_reason() -> None:
    some = matched(Plain([Box(0, (0, 0, 4, 4), 0.9, 5.0)], [(0, (0, 0, 4, 4), 0)]))
    with pytest.warns(UndefinedMetricWarning, match=r"p_u is undefined \(NaN\): no box is called unknown"):
        assert math.isnan(objects.p_u(some, tau=1.0))
    nothing = matched(Plain([Box(0, (0, 0, 4, 4), 0.9, 0.0)]))
    for metric in (objects.r_u, objects.ap_u, objects.nose, objects.nose_boxes, objects.dismissed):
        with pytest.warns(UndefinedMetricWarning, match="no object is annotated"):
            assert math.isnan(metric(nothing, tau=1.0))
    assert objects.p_u(nothing, tau=1.0) == 0


@given(scenes(min_objects=1), TAUS)
def test_eleven_points_are_those_of_a_loop(scene: Plain, tau: float) -> None:
    found = OpenSet(matched(scene), tau)
    curve = []
    for cut in sorted(set(found.boxes.confidence[found.ranked].tolist()), reverse=True):
        rows = found.boxes.confidence[found.ranked] >= cut
        curve.append((int(found.is_true[rows].sum()), int(rows.sum())))
    n = len(scene.objects)
    best = [max((t / c for t, c in curve if t * 10 >= level * n), default=0.0) for level in range(11)]
    assert ap_u_of(found, "11").value == pytest.approx(sum(best) / 11, abs=1e-12)


def test_average_precision_by_hand() -> None:
    # Found, missed, found, of two objects: precision 1 up to recall 1/2, then 2/3.
    assert average_precision(np.array([1, 1, 2]), np.array([1, 2, 3]), 2) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.array([1, 1, 2]), np.array([1, 2, 3]), 2, points="11") == pytest.approx(
        (6 * 1 + 5 * 2 / 3) / 11
    )


def test_what_does_not_fit_is_named() -> None:
    ones, none = np.ones(2), np.full(2, -1)
    with pytest.raises(NonFiniteScoreError, match="scores contains NaN"):
        MatchedBoxes(ones, np.array([1.0, math.nan]), none, ones, 0)
    with pytest.raises(InvalidArgumentError, match=r"objects from -1 .* to 1, got 0 to 3"):
        MatchedBoxes(ones, ones, np.array([0, 3]), ones, 2)
    with pytest.raises(InvalidArgumentError, match=r"scores for each of 2 boxes, got shape \(3,\)"):
        MatchedBoxes(ones, np.ones(3), none, ones, 0)
    boxes = MatchedBoxes(ones, ones, none, ones, 0)
    with pytest.raises(InvalidArgumentError, match=r"tau .* got NaN"):
        OpenSet(boxes, math.nan)
    with pytest.raises(InvalidArgumentError, match=r"iou to be in \(0, 1\], got 0"):
        OpenSet(boxes, 0.0, 0)
    with pytest.raises(InvalidArgumentError, match=r"points .* got '12'"):
        ap_u_of(OpenSet(boxes, 0.0), "12")
