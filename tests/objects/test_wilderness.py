"""Wilderness impact against a loop over thresholds, and where it is not defined."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.objects.metrics import ClassifiedBoxes, wilderness_impact
from oodlit.objects.metrics.wilderness import wilderness_of


def reference(boxes: ClassifiedBoxes, recall: Fraction):
    rows = list(zip(boxes.confidence, boxes.classes, boxes.known, boxes.on_unknown, strict=True))
    on_unknown, called = [], []
    for label, n in enumerate(boxes.n_objects.tolist()):
        if not n:
            continue
        for cut in sorted({row[0] for row in rows if row[1] == label}, reverse=True):
            kept = [row for row in rows if row[1] == label and row[0] >= cut]
            if len({row[2] for row in kept if row[2] >= 0}) >= recall * n:
                on_unknown.append(sum(bool(row[3]) for row in kept))
                called.append(len(kept))
                break
        else:
            return None
    return Fraction(sum(on_unknown), sum(called)) if called else None


@given(st.integers(0, 2**32 - 1), st.sampled_from(["0.25", "0.5", "0.8"]))
def test_it_is_that_of_a_loop(seed: int, recall: str) -> None:
    made = np.random.default_rng(seed)
    n, counts = int(made.integers(1, 16)), made.integers(0, 4, 2)
    classes = made.integers(0, 2, n)
    starts = np.array([0, counts[0]])[classes]
    known = np.where(counts[classes] > 0, starts + made.integers(0, np.maximum(counts[classes], 1)), -1)
    known[made.uniform(size=n) < 0.3] = -1
    boxes = ClassifiedBoxes(
        made.integers(1, 6, n) / 5, classes, known, (known < 0) & (made.uniform(size=n) < 0.7), counts
    )
    expected = reference(boxes, Fraction(recall))
    found = wilderness_of(boxes, recall=recall).value
    np.testing.assert_allclose(found, math.nan if expected is None else float(expected), rtol=0, atol=1e-12)


def test_a_recall_that_is_not_reached_is_undefined() -> None:
    one = np.zeros(1, dtype=np.int64)
    boxes = ClassifiedBoxes(np.ones(1), one, one, np.array([False]), np.array([2, 0]))
    assert wilderness_impact(boxes, recall=0.5) == 0
    with pytest.warns(
        UndefinedMetricWarning, match=r"recall 0\.8 is not reached for 1 of 1 classes \(first: .* index 0\)"
    ):
        assert math.isnan(wilderness_impact(boxes))
    with pytest.raises(InvalidArgumentError, match=r"classes from 0 to -1, got 0 to 0"):
        ClassifiedBoxes(np.ones(1), one, one, np.array([False]), np.zeros(0, dtype=np.int64))
