"""What images contribute to FPR and AUROC: against plain loops, and how often the best detector is in the group."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.metrics import acceptance_threshold, auroc, fpr_at_tpr
from oodlit.metrics.uncertainty.paired import ImageParts, auroc_parts, below_the_best, fpr_parts, in_group_of_best

FEW = st.lists(st.integers(-4, 4), min_size=2, max_size=12)


def of_two_classes(first: list[int], second: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Weights and classes with which the value is the mean over two classes."""
    classes = np.repeat([0, 1], [len(first), len(second)])
    return 1 / (2 * np.array([len(first), len(second)])[classes]), classes


@given(FEW, FEW, FEW)
def test_values_are_the_means_over_classes(inside: list[int], first: list[int], second: list[int]) -> None:
    rows, ood, places = np.array([inside], float), np.array([first + second], float), of_two_classes(first, second)
    areas = auroc_parts(rows, ood, *places)
    assert areas.values[0] == pytest.approx((auroc(inside, first) + auroc(inside, second)) / 2)
    assert (areas.of_id.mean(axis=1) - areas.values)[0] == pytest.approx(0)
    threshold = acceptance_threshold(inside, tpr=0.9)
    rates = fpr_parts(rows, ood, *places, np.array([threshold]))
    assert rates.values[0] == pytest.approx(
        (fpr_at_tpr(inside, first, tpr=0.9) + fpr_at_tpr(inside, second, tpr=0.9)) / 2
    )
    assert (rates.of_id <= 0).all()  # more ID images kept, more OOD images accepted


@given(FEW, FEW, FEW)
def test_parts_of_the_auroc_are_those_of_a_plain_loop(inside: list[int], first: list[int], second: list[int]) -> None:
    ood, (weights, classes) = first + second, of_two_classes(first, second)
    parts = auroc_parts(np.array([inside], float), np.array([ood], float), weights, classes)

    def above(a: int, b: int) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    assert parts.of_ood[0] == pytest.approx([np.mean([above(i, o) for i in inside]) for o in ood])
    expected = [sum(w * above(i, o) for w, o in zip(weights, ood, strict=True)) for i in inside]
    assert parts.of_id[0] == pytest.approx(expected)


def test_p_value_is_that_of_delong() -> None:
    """Of one class and many images the square of the difference adds next to nothing."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=5000)
    scores = np.stack([common + rng.normal(size=5000), 0.9 * common + rng.normal(size=5000)])
    inside, ood = scores[:, :3000] + 1, scores[:, 3000:]
    parts = auroc_parts(inside, ood, np.full(2000, 1 / 2000), np.zeros(2000, dtype=np.int64))
    best = int(parts.values.argmax())
    found = below_the_best(parts, best, is_lower_better=False)[1 - best]
    above = [[np.mean(row_id > o) for o in row] for row_id, row in zip(inside, ood, strict=True)]
    below = [[np.mean(row < i) for i in row_id] for row_id, row in zip(inside, ood, strict=True)]
    covariance = np.cov(above) / 2000 + np.cov(below) / 3000
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    z = abs(np.mean(above[0]) - np.mean(above[1])) / math.sqrt(variance)
    assert found == pytest.approx(math.erfc(z / math.sqrt(2)) / 2, rel=0.02)


def test_few_images_that_agree_are_no_certainty() -> None:
    """Four images of four: the test of signs gives 1/16, and the variance of the differences is zero."""
    accepted = np.array([[0.0] * 4, [1.0] * 4])
    parts = ImageParts(np.zeros((2, 1000)), accepted, np.full(4, 0.25), np.zeros(4, dtype=np.int64))
    assert 0.01 < below_the_best(parts, 0, is_lower_better=True)[1] < 0.1


def test_the_threshold_counts() -> None:
    """Of a few ID images the threshold is uncertain; with many the same difference of FPR is certain."""
    rng = np.random.default_rng(1)
    ood = rng.normal(size=(2, 4000)) + np.array([[0.0], [0.35]])

    def p_value(n: int) -> float:
        inside = np.sort(rng.normal(2.5, 1, size=(2, n)), axis=1)
        places = np.full(4000, 1 / 4000), np.zeros(4000, dtype=np.int64)
        parts = fpr_parts(inside, ood, *places, inside[:, n // 20])
        return float(below_the_best(parts, 0, is_lower_better=True)[1])

    assert p_value(20_000) < 1e-4
    assert p_value(40) > 0.02


@pytest.mark.parametrize("metric", ["fpr", "auroc"])
def test_the_best_is_in_the_group_as_often_as_is_said(metric: str) -> None:
    """Three detectors are equally good, so each is the best one; a fourth is worse, a fifth much worse."""
    rng, repetitions, kept = np.random.default_rng(2), 200, np.zeros(5)
    classes = np.repeat(np.arange(3), 60)
    weights = np.full(180, 1 / 180)
    for _ in range(repetitions):
        images = np.sqrt(0.6) * rng.normal(size=(1, 580)) + np.sqrt(0.4) * rng.normal(size=(5, 580))
        inside, ood = images[:, :400] + np.array([[2.5], [2.5], [2.5], [2.2], [1.0]]), images[:, 400:] + classes / 5
        if metric == "fpr":
            parts = fpr_parts(inside, ood, weights, classes, np.sort(inside, axis=1)[:, 20])
        else:
            parts = auroc_parts(inside, ood, weights, classes)
        best = int(parts.values.argmin() if metric == "fpr" else parts.values.argmax())
        p_values = below_the_best(parts, best, is_lower_better=metric == "fpr")
        kept += in_group_of_best(p_values, confidence=0.95)
    assert (kept[:3] / repetitions > 0.93).all()
    assert kept[4] == 0
    assert kept[3] < kept[:3].min()
