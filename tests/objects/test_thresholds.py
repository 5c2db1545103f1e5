"""tau by both rules, and t* against the precision and scores of COCO's evaluation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.objects.metrics import Objects, best_f1_confidence, unknown_threshold


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 2.0, 3.0]), min_size=1, max_size=40))
def test_quantile_keeps_the_share_and_normal_is_the_formula(scores: list[float]) -> None:
    tau = unknown_threshold(torch.tensor(scores))
    assert tau in scores
    assert sum(s >= tau for s in scores) >= 0.95 * len(scores)
    assert all(sum(s >= t for s in scores) < 0.95 * len(scores) for t in scores if t > tau)
    normal = unknown_threshold(torch.tensor(scores), rule="normal")
    assert normal == pytest.approx(np.mean(scores) - 1.645 * np.std(scores), abs=1e-12)


def test_thresholds_that_cannot_be() -> None:
    for rule in ("quantile", "normal"):
        with pytest.warns(UndefinedMetricWarning, match="there is no ID"):
            assert math.isnan(unknown_threshold([], rule=rule))
    with pytest.raises(InvalidArgumentError, match="1 of 2 ID scores is infinite"):
        unknown_threshold([1.0, -math.inf], rule="normal")
    with pytest.raises(InvalidArgumentError, match=r"rule .* got 'mean'"):
        unknown_threshold([1.0], rule="mean")
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match=r"Objects\(boxes, image, classes\), got no classes"):
        best_f1_confidence(np.zeros((0, 4)), np.zeros(0), none, none, Objects(np.zeros((0, 4)), none))


def test_a_rule_that_falls_below_all_scores_calls_nothing_unknown() -> None:
    """What happened in 23 published rows: scores that are not normal, and P_U = R_U = 0."""
    scores = [0.0] * 10 + [1.0] * 10 + [-0.01]
    assert unknown_threshold(scores, rule="normal") < min(scores) <= unknown_threshold(scores)


def scene(seed: int):
    made = np.random.default_rng(seed)
    corner = made.uniform(0, 60, (30, 2))
    objects = Objects(
        np.concatenate([corner, corner + made.uniform(10, 40, (30, 2))], axis=1).round(1),
        made.integers(0, 5, 30),
        made.integers(0, 3, 30),
    )
    source = made.integers(0, 30, 50)
    boxes = objects.boxes[source] + made.normal(0, 3, (50, 4))
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    classes = np.where(made.uniform(size=50) < 0.7, objects.classes[source], made.integers(0, 3, 50))
    return boxes.round(1), made.permutation(50) / 50, objects.image[source], classes, objects


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("crowds", [False, True])
def test_best_f1_is_that_of_cocos_curves(seed: int, crowds: bool) -> None:
    detection = pytest.importorskip("torchmetrics.detection")
    boxes, confidence, image, classes, objects = scene(seed)
    is_crowd = (np.arange(len(objects)) % 7 == 0) & crowds
    metric = detection.MeanAveragePrecision(backend="faster_coco_eval", extended_summary=True)
    predictions, targets = [], []
    for number in range(5):
        mine, theirs = image == number, objects.image == number
        predictions.append(
            {
                "boxes": torch.tensor(boxes[mine], dtype=torch.float32),
                "scores": torch.tensor(confidence[mine], dtype=torch.float32),
                "labels": torch.tensor(classes[mine]),
            }
        )
        targets.append(
            {
                "boxes": torch.tensor(objects.boxes[theirs], dtype=torch.float32),
                "labels": torch.tensor(objects.classes[theirs]),
                "iscrowd": torch.tensor(is_crowd[theirs].astype(int)),
            }
        )
    metric.update(predictions, targets)
    found = metric.compute()
    precision, scores = (found[name][:, :, :, 0, -1].double().mean(0).numpy() for name in ("precision", "scores"))
    recall = np.linspace(0, 1, 101)[:, None]
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    expected = scores[f1.argmax(0), np.arange(scores.shape[1])].mean()
    assert best_f1_confidence(boxes, confidence, image, classes, objects, is_crowd=is_crowd) == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(("n_classes", "expected"), [(1, 99), (2, 118.5)])
def test_100_boxes_per_image_and_class_count(n_classes: int, expected: float) -> None:
    """120 objects of one image, each with its box: as in COCO's curves, boxes 100, ..., 119 of a class do not exist."""
    corner = np.stack(np.divmod(np.arange(120), 12), axis=1) * 10.0
    boxes, image, classes = np.hstack([corner, corner + 8]), np.zeros(120, dtype=np.int64), np.arange(120) % n_classes
    confidence = 0.9 - np.arange(120) / 1000
    found = best_f1_confidence(boxes, confidence, image, classes, Objects(boxes, image, classes))
    assert found == pytest.approx(0.9 - expected / 1000, abs=1e-12)
    apart = np.arange(120) // 60  # of two images, all of them count
    found = best_f1_confidence(boxes, confidence, apart, classes, Objects(boxes, apart, classes))
    assert found == pytest.approx(0.9 - (119 if n_classes == 1 else 118.5) / 1000, abs=1e-12)


def test_without_objects_there_is_no_best_f1() -> None:
    boxes, confidence, image, classes, _ = scene(0)
    none = Objects(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    with pytest.warns(UndefinedMetricWarning, match="there is no ID object"):
        assert math.isnan(best_f1_confidence(boxes, confidence, image, classes, none))
