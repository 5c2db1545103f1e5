"""An image drawn twice brings its boxes and objects twice: the replicates are metrics of scenes made so."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.metrics import auroc, fpr_at_tpr
from oodlit.objects.metrics import OpenSet, RankedBoxes, ranking_replicates
from oodlit.objects.metrics.open_set_error import dismissed_of, nose_boxes_of, nose_of
from oodlit.objects.metrics.resampling import interval, resample
from oodlit.objects.metrics.unknown_boxes import ap_u_of, ap_u_replicates, p_u_of, r_u_of

from .support import SCORES, Plain, matched, scenes

RATIOS = {"p_u": p_u_of, "r_u": r_u_of, "nose": nose_of, "nose_boxes": nose_boxes_of, "dismissed": dismissed_of}


def drawn_scene(scene: Plain, counts: list[int]) -> Plain:
    boxes, objects, number = [], [], 0
    for image, count in enumerate(counts):
        for _ in range(count):
            boxes += [replace(box, image=number) for box in scene.boxes if box.image == image]
            objects += [(number, corners, label) for at, corners, label in scene.objects if at == image]
            number += 1
    return Plain(boxes, objects, max(number, 1))


@given(scenes(min_objects=1), st.sampled_from(SCORES), st.integers(0, 2**32 - 1))
def test_replicates_are_metrics_of_drawn_scenes(scene: Plain, tau: float, seed: int) -> None:
    drawn = resample(scene.n_images, repetitions=3, seed=seed)
    image = np.array([box.image for box in scene.boxes], dtype=np.int64)
    object_image = np.array([image for image, _, _ in scene.objects], dtype=np.int64)
    boxes = replace(matched(scene), image=image, object_image=object_image)
    found = OpenSet(boxes, tau)
    replicates = {name: of(found).replicates(drawn) for name, of in RATIOS.items()}
    for row, counts in enumerate(drawn.tolist()):
        again = OpenSet(matched(drawn_scene(scene, counts)), tau)
        for name, of in RATIOS.items():
            expected = of(again).value.value
            np.testing.assert_allclose(replicates[name][row], expected, rtol=0, atol=1e-12, err_msg=name)
        area = ap_u_replicates(found, drawn)[row]
        np.testing.assert_allclose(area, ap_u_of(again).value, rtol=0, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_ranking_replicates_are_those_of_drawn_boxes(seed: int, tpr: float) -> None:
    made = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        n_boxes, n_images = int(made.integers(1, 12)), int(made.integers(1, 5))
        drawn = resample(n_images, repetitions=4, seed=int(made.integers(100)))
        sides.append(RankedBoxes(made.integers(0, 6, n_boxes) / 2, made.integers(0, n_images, n_boxes), drawn))
    found = ranking_replicates(*sides, tpr=tpr)
    for row in range(4):
        scores = [torch.from_numpy(np.repeat(s.scores, s.drawn[row][s.image])) for s in sides]
        if any(len(part) == 0 for part in scores):
            assert math.isnan(found["auroc"][row])
            assert math.isnan(found["fpr"][row])
            continue
        assert found["auroc"][row] == pytest.approx(auroc(*scores), abs=1e-12)
        assert found["fpr"][row] == pytest.approx(fpr_at_tpr(*scores, tpr=tpr), abs=1e-12)


def test_an_interval_never_claims_certainty() -> None:
    low, high = interval(np.zeros(50), confidence=0.95, value=0.0, n_images=10)
    assert low == 0 < high < 0.4
    assert interval(np.full(50, np.nan), confidence=0.95, value=0.5, n_images=10) == pytest.approx(
        (math.nan, math.nan), nan_ok=True
    )
    low, high = interval(np.linspace(0, 1, 101), confidence=0.9, value=0.5, n_images=10)
    assert (low, high) == (pytest.approx(0.05), pytest.approx(0.95))


def test_draws_are_of_images_and_repeatable() -> None:
    first, again = (resample(20, repetitions=30, seed=4) for _ in range(2))
    assert (first == again).all()
    assert (first.sum(axis=1) == 20).all()
    assert resample(0, repetitions=3, seed=0).shape == (3, 0)
