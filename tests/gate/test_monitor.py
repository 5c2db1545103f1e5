"""Counting refusals: the interval holds at all times; one warning comes when the share leaves what was predicted."""

import dataclasses
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import beta

from oodlit.errors import DataError, InvalidArgumentError
from oodlit.gate import DriftTest, DriftWarning, Monitor, RefusalWarning, Threshold, Verdict
from oodlit.gate.monitor import running_interval


class Told:
    """In place of a gate: its threshold."""

    def __init__(self, refused: int = 25, total: int = 500) -> None:
        self.threshold = Threshold(0, 0, 0, 0, "tpr", 0.95, "val", total, total, refused, 0.95)

    def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
        return [Verdict(bool(image), 0.0, 0.0, None, "", math.nan) for image in images]


def monitor(refused: int = 25, total: int = 500) -> Monitor:
    return Monitor(Told(refused, total))


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.8, 0.95]))
def test_interval_is_that_of_the_mean_likelihood(successes: int, failures: int, confidence: float) -> None:
    """Second source: the definition, on a grid."""
    low, high = running_interval(successes, successes + failures, confidence=confidence)
    grid = np.linspace(0, 1, 2001)
    inside = grid**successes * (1 - grid) ** failures > (1 - confidence) * beta(1 + successes, 1 + failures)
    assert low == pytest.approx(grid[inside].min(), abs=1e-3)
    assert high == pytest.approx(grid[inside].max(), abs=1e-3)
    mirrored = running_interval(failures, successes + failures, confidence=confidence)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_interval_holds_at_all_times() -> None:
    """Of 150 services with a true share of 5 %, at most 5 % ever see an interval without it (and some chance more)."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(150):
        counts = (rng.random(1000) < 0.05).cumsum()
        ends = [running_interval(int(counts[n]), n + 1) for n in range(9, 1000, 90)]
        missed += any(not low <= 0.05 <= high for low, high in ends)
    assert missed <= 150 * 0.05 + 3 * math.sqrt(150 * 0.05 * 0.95)


def test_a_share_as_predicted_is_silent_and_another_one_is_said_once() -> None:
    seen = monitor()
    assert str(seen) == "no image seen yet; expected from the ID set: 5.0 % [3.4 %, 7.3 %]"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [v.accepted for v in seen([1] * 19 + [0])] == [True] * 19 + [False]
        seen.count([True] * 190 + [False] * 10)
    assert (seen.num_images, seen.num_refused) == (220, 11)
    assert seen.share == pytest.approx(0.05)
    assert not seen.is_outside
    assert str(seen).startswith("refused 11 of 220 images: 5.0 % [")
    assert "; expected from the ID set: 5.0 % [3.4 %, 7.3 %]" in str(seen)
    with pytest.warns(RefusalWarning, match=r"differ from the images of the ID set: refused 91 of 300 images: 30.3 %"):
        seen.count([False] * 80)
    assert seen.is_outside
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen.count([False] * 5)
        seen.reset()
    assert math.isnan(seen.share)
    assert seen.interval == (0.0, 1.0)


def test_the_mean_p_value_is_printed() -> None:
    class WithPValues(Told):
        def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
            return [Verdict(True, 0.0, 0.0, None, "", math.nan, image) for image in images]

    seen = Monitor(WithPValues())
    assert math.isnan(seen.mean_p_value)
    seen([0.25, None, 1.0])
    seen([0.1])
    assert seen.mean_p_value == pytest.approx(0.45)
    assert str(seen).endswith("; mean p-value 0.45 (ID images: 0.5)")
    seen.reset()
    assert "p-value" not in str(seen)


def test_fewer_refusals_than_predicted_are_said_too() -> None:
    seen = monitor(refused=250)
    with pytest.warns(RefusalWarning):
        seen.count([True] * 200)


def test_numbers_out_of_range() -> None:
    with pytest.raises(InvalidArgumentError, match="got 3 of 2"):
        running_interval(3, 2)
    with pytest.raises(InvalidArgumentError, match="confidence"):
        Monitor(Told(), confidence=1.0)


def test_drift_is_reported_once_and_survives_a_restart(tmp_path: Path) -> None:
    """A service that is restarted after every 50 images reports the same as one that is not."""
    known, unknown = np.random.default_rng(0).normal(size=(2, 400))
    stream = [*known[:200].tolist(), *(unknown[:200] - 3).tolist()]
    accepted = [place % 20 > 0 for place in range(400)]
    whole = Monitor(Told(), drift=DriftTest(known))
    whole.count(accepted[:200], scores=stream[:200])
    assert str(whole).endswith("; no drift found in 200 images")
    with pytest.warns(
        DriftWarning, match=r"drift detected at image 2\d\d; it began near image (19|20)\d. .* lowest 1 %"
    ) as seen:
        whole.count(accepted[200:], scores=stream[200:])
    assert len(seen) == 1
    file, texts = tmp_path / "monitor.json", []
    for start in range(0, 400, 50):
        part = Monitor(Told(), drift=DriftTest(known))
        if start:
            part.restore(file)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            part.count(accepted[start : start + 50], scores=stream[start : start + 50])
        texts += [warning for warning in caught if warning.category is DriftWarning]
        part.save(file)
    assert len(texts) == 1
    assert str(part) == str(whole)
    part.reset()
    assert "drift detected at image" in str(part), "the test is not a daily one"
    part.drift.reset()
    assert "no drift found in 0 images" in str(part)


def test_files_of_other_monitors_are_refused(tmp_path: Path) -> None:
    Monitor(Told(), drift=DriftTest([1.0, 2.0])).save(tmp_path / "monitor.json")
    with pytest.raises(InvalidArgumentError, match="the state was saved by a test with other ID scores"):
        Monitor(Told(), drift=DriftTest([1.0, 3.0])).restore(tmp_path / "monitor.json")
    moved = Told()
    moved.threshold = dataclasses.replace(moved.threshold, cut=1.0)
    with pytest.raises(InvalidArgumentError, match=r"a gate that compares scores with 0.*, but this .* with 1\.0"):
        Monitor(moved).restore(tmp_path / "monitor.json")
    (tmp_path / "monitor.json").write_text("{}")
    with pytest.raises(DataError, match="missing required field"):
        monitor().restore(tmp_path / "monitor.json")


def test_scores_belong_to_decisions() -> None:
    seen = Monitor(Told(), drift=DriftTest([1.0, 2.0]))
    with pytest.raises(InvalidArgumentError, match="got 1 score for 2 decisions"):
        seen.count([True, True], scores=[1.0])
    assert seen.num_images == seen.drift.num_images == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changed", [{"num_refused": 9}, {"num_images": -1}, {"num_p_values": 9}, {"num_p_values": 1, "sum_p_values": 2.0}]
)
def test_counts_that_contradict_each_other_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    file, seen = tmp_path / "monitor.json", monitor()
    seen.count([True, False, True])
    seen.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(DataError, match="counts contradict each other"):
        seen.restore(file)
    assert seen.num_images == 3


def test_a_threshold_that_accepts_everything_can_be_saved(tmp_path: Path) -> None:
    gate = Told()
    gate.threshold = dataclasses.replace(gate.threshold, value=-math.inf, cut=-math.inf)
    seen, again = Monitor(gate), Monitor(gate)
    seen.count([True] * 3)
    seen.save(tmp_path / "monitor.json")
    again.restore(tmp_path / "monitor.json")
    assert str(again) == str(seen)
