"""Mean average precision of the ID classes equals COCO's evaluation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from oodlit.objects import Detections
from oodlit.objects.metrics.quality import has_id_quality, id_quality
from tests.objects.support import Plain, annotations_of, arrays, reference_iou, scenes

pytestmark = pytest.mark.skipif(not has_id_quality(), reason="requires the extra 'objects'")

OVERLAPS, RECALLS = np.linspace(0.5, 0.95, 10), np.linspace(0, 1, 101)


def quality(scene: Plain, classes=("cat", "dog")) -> dict[str, float]:
    keys = [f"val/{n}" for n in range(scene.n_images)]
    objects = {key: [c for i, c, _ in scene.objects if i == n] for n, key in enumerate(keys)}
    labels = {key: [k for i, _, k in scene.objects if i == n] for n, key in enumerate(keys)}
    boxes, image, _ = arrays(scene)
    confidence = torch.tensor([b.confidence for b in scene.boxes], dtype=torch.float64)
    predictions = torch.tensor([b.label for b in scene.boxes], dtype=torch.int64)
    found = Detections(torch.from_numpy(boxes), confidence, torch.from_numpy(image), keys, predictions=predictions)
    return id_quality(found, annotations_of("val", objects, classes=classes, labels=labels))


def average_precision(ranked: list[bool], n_objects: int) -> float:
    """By loops, as in COCO's evaluation."""
    found = np.cumsum(ranked)
    points = [(n / n_objects, n / place) for place, n in enumerate(found.tolist(), 1)]
    return math.fsum(max((p for r, p in points if r >= recall), default=0.0) for recall in RECALLS) / 101


def reference(scene: Plain, label: int, overlap: float) -> float:
    """Of one class whose boxes have different confidences: each takes the free object that it overlaps most."""
    free = [(i, c) for i, c, k in scene.objects if k == label]
    total, ranked = len(free), []
    for box in sorted((b for b in scene.boxes if b.label == label), key=lambda b: -b.confidence):
        near = [(float(reference_iou(box.corners, c)), i, c) for i, c in free if i == box.image]
        best = max(near, default=(0.0, 0, None))
        ranked.append(best[0] >= overlap)
        if ranked[-1]:
            free.remove(best[1:])
    return average_precision(ranked, total)


@pytest.mark.parametrize("n_objects", [7, 10, 20, 50])
def test_recalls_that_are_points_of_the_curve_count(n_objects: int) -> None:
    places = [(20 * (n % 9), 20 * (n // 9), 20 * (n % 9) + 10, 20 * (n // 9) + 10) for n in range(n_objects)]
    scene = Plain(objects=[(0, place, 0) for place in places])
    detections = scene.boxes
    ranked = [n % 3 != 2 for n in range(3 * n_objects // 2)]  # two of three boxes hit an object
    hits = iter(places)
    for rank, hit in enumerate(ranked):
        corners = next(hits) if hit else (150, 150, 160, 170)
        detections.append(_box(corners, 0.9 - rank / 200))
    found = quality(scene, ("cat",))
    expected = average_precision(ranked, n_objects)
    assert found["map50"] == pytest.approx(expected, abs=1e-6)
    assert found["map"] == pytest.approx(expected, abs=1e-6)


def _box(corners, confidence):
    from tests.objects.support import Box

    return Box(0, corners, confidence, 0.0)


@given(scenes(min_objects=1))
@settings(max_examples=20, deadline=None)
def test_values_are_those_of_loops(scene: Plain) -> None:
    scene.objects = sorted(set(scene.objects))  # of equal objects, any may be taken
    for rank, box in enumerate(scene.boxes):
        box.confidence = 0.9 - rank / 100
    found = quality(scene)
    present = sorted({label for _, _, label in scene.objects})
    at = {label: [reference(scene, label, overlap) for overlap in OVERLAPS] for label in present}
    assert found["map50"] == pytest.approx(np.mean([at[label][0] for label in present]), abs=1e-6)
    assert found["map"] == pytest.approx(np.mean([at[label] for label in present]), abs=1e-6)
