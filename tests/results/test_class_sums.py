"""Sums over estimation images: the same from any cut into processes and any order, to the last digit."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.results import DatasetInfo
from oodlit.results.files.class_sums import ESTIMATES, ClassSums, estimates
from oodlit.roles import Role

DETECTORS = ("far", "near")
INFO = DatasetInfo("pool", Role.POOL, ("a", "b", "c", "d"), id_classes=2)
KINDS = {"near": "exp(score)", "far": "score"}
IMAGES = st.lists(
    st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6), st.floats(0, 1), st.integers(0, 2**64 - 1)), max_size=40
)


def sums_of(images) -> ClassSums:
    sums = ClassSums(DETECTORS, 4)
    groups = torch.tensor([group for group, *_ in images]).long()
    far, near = (torch.tensor([image[i] for image in images], dtype=torch.float64) for i in (1, 2))
    for rows in torch.arange(len(images)).split(7):
        sums.add(groups[rows], {"near": near[rows], "far": far[rows]})
    sums.add_digests(groups, [digest for *_, digest in images])
    return sums


@given(IMAGES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_processes_and_order_leave_no_trace(images, processes, random):
    whole = estimates([sums_of(images).frame(detectors=DETECTORS)], INFO, DETECTORS, KINDS)
    random.shuffle(images)
    parts = [sums_of(images[rank::processes]).frame(detectors=DETECTORS) for rank in range(processes)]
    pd.testing.assert_frame_equal(estimates(parts, INFO, DETECTORS, KINDS), whole, check_exact=True)
    assert tuple(whole.columns) == ESTIMATES
    for place, detector in ((1, "far"), (2, "near")):
        own = whole[whole["detector"] == detector]
        assert set(own["confidence"]) == {KINDS[detector]}
        for c in range(4):
            values = [image[place] for image in images if image[0] == c]
            row = own.iloc[c]
            assert row["n_estimation"] == len(values)
            if not values:
                assert math.isnan(row["severity"])
                continue
            assert row["severity"] == math.fsum(values) / len(values)
            if len(values) > 1:
                scale = max(map(abs, values))
                expected = np.std(values, ddof=1) / math.sqrt(len(values))
                assert row["standard_error"] == pytest.approx(expected, rel=1e-6, abs=1e-7 * scale)
            else:
                assert math.isnan(row["standard_error"])


def test_a_detector_that_failed_is_left_out_and_infinities_have_no_error():
    sums = ClassSums(DETECTORS, 2)
    sums.add(torch.tensor([0, 0, 1, 1]), {"near": torch.tensor([0.5, -math.inf, 0.25, 0.75])})
    info = DatasetInfo("pool", Role.POOL, ("a", "b"), id_classes=1)
    found = estimates([sums.frame(detectors=["near"])], info, ["near"], KINDS)
    assert found["severity"].tolist() == [-math.inf, 0.5]
    assert math.isnan(found["standard_error"][0])
    assert found["standard_error"][1] == pytest.approx(0.25)


def test_another_image_or_part_is_another_digest():
    one, other = (ClassSums(DETECTORS, 1) for _ in range(2))
    one.add_digests(torch.tensor([0, 0]), [1, 2**64 - 1])
    other.add_digests(torch.tensor([0]), [2**64 - 5])
    assert one.frame(detectors=["far"])["digest"].tolist() == [0]
    assert other.frame(detectors=["far"])["digest"].tolist() == [-5]
