"""The drift test: exact p-values, bets as defined, few false alarms, quick alarms, and a state that survives."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from oodlit.base.json_files import parse_json, to_json
from oodlit.detectors.formulas.p_values import p_values, simes
from oodlit.errors import DataError, InvalidArgumentError, NonFiniteScoreError
from oodlit.gate import Calibration, DriftTest
from oodlit.gate.drift import DriftState

INTERVALS = [(0, 0.01), (0, 0.05), (0, 0.2), (0, 0.5), (0.25, 0.75), (0.5, 1), (0.8, 1), (0.95, 1), (0.99, 1)]


def evidence(p_values: np.ndarray) -> np.ndarray:
    """Second source: the capital after each image, streams in columns, by plain sums over the bets."""
    reserve = [1 / math.log(math.e + t) for t in range(len(p_values) + 1)]
    total = np.tile(np.array(reserve[1:])[:, None], (1, p_values.shape[1]))
    for (low, high), stake in itertools.product(INTERVALS, (0.01, 0.03, 0.1, 0.3)):
        gains = 1 + stake * (((p_values >= low) & (p_values < high)) / (high - low) - 1)
        capital = np.zeros(p_values.shape[1])
        for t, gain in enumerate(gains):
            capital = (capital + (reserve[t] - reserve[t + 1]) / 36) * gain
            total[t] += capital
    return total


def test_p_values_are_exact_over_all_orders_of_five_scores() -> None:
    """Each of four gaps has 1/4 of the orders; then the gap with the fourth score has 2/5 and the three others 1/5."""
    found: Counter[tuple[int, int]] = Counter()
    for order in itertools.permutations((0.1, 0.2, 0.3, 0.4, 0.5)):
        first, second = DriftTest(order[:3]).update(order[3:])
        sizes = np.ones(4)
        sizes[gap := int(4 * first)] += 1
        found[gap, int(np.searchsorted(sizes.cumsum(), 5 * second, "right"))] += 1
    assert found == {(a, b): 12 if a == b else 6 for a in range(4) for b in range(4)}


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), max_size=20), st.integers(0, 99)
)
@settings(max_examples=50, deadline=None)
def test_p_values_are_ranks_up_to_the_next_id_scores(known: list[int], stream: list[int], seed: int) -> None:
    """Second source: plain counts over all earlier scores, up to the gap of the score and ties."""
    earlier = sorted(known)
    for place, p_value in enumerate(DriftTest(known, seed=seed).update(stream)):
        score = stream[place]
        low = max((k for k in known if k < score), default=-1)
        high = min((k for k in known if k > score), default=10)
        total = len(earlier) + 1
        assert sum(e < low for e in earlier) / total <= p_value
        assert p_value <= (1 + sum(e <= high for e in earlier)) / total
        earlier.append(score)


@pytest.mark.parametrize("levels", [1, 5, 10**9])
def test_p_values_are_uniform_and_independent_with_ties_and_joined_gaps(levels: int) -> None:
    rng = np.random.default_rng(levels)
    known, stream = (rng.integers(levels, size=size) for size in (3000, 8000))
    found = DriftTest(known, seed=3).update(stream)
    assert kstest(found, "uniform").pvalue > 0.001
    pairs = np.histogram2d(found[:-1], found[1:], bins=4, range=[[0, 1], [0, 1]])[0]
    assert ((pairs - len(found) / 16) ** 2).sum() / (len(found) / 16) < 45  # chi-squared with 15 degrees of freedom


def test_evidence_is_the_sum_of_the_bets() -> None:
    test, rng = DriftTest(np.arange(50), false_alarm_rate=1e-9), np.random.default_rng(0)
    steps = [(test.update([score])[0], test.evidence) for score in rng.normal(20, 15, size=300)]
    p_values, found = np.array(steps).T
    np.testing.assert_allclose(found, evidence(p_values[:, None])[:, 0], rtol=1e-9)


def test_false_alarms_are_as_rare_as_stated() -> None:
    """400 streams of 2,000 p-values, and 60 streams of scores with few ID scores, of which a fixed set would fail."""
    rng = np.random.default_rng(0)
    most = evidence(rng.random((2000, 400))).max(axis=0)
    for rate in (0.2, 0.05):
        assert (most >= 1 / rate).mean() <= rate + 3 * math.sqrt(rate * (1 - rate) / 400)
    fixed = [_ranks(rng.random(50), rng.random(2000)) for _ in range(60)]
    assert (evidence(np.array(fixed).T).max(axis=0) >= 5).mean() > 0.5
    tests = [DriftTest(rng.random(50), false_alarm_rate=0.2) for _ in range(60)]
    for test in tests:
        test.update(rng.random(500))
    assert sum(test.alarm is not None for test in tests) <= 60 * 0.2 + 3 * math.sqrt(60 * 0.2 * 0.8)


def _ranks(known: np.ndarray, stream: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(known), stream) / (len(known) + 1)


def test_a_hundred_thousand_images_without_a_change_raise_no_alarm() -> None:
    rng = np.random.default_rng(0)
    test = DriftTest(rng.normal(size=5000))
    test.update(rng.normal(size=100_000))
    assert str(test) == "no drift found in 100,000 images"
    test.update(rng.normal(-1, size=200))
    assert test.alarm is not None, "a change is found after any time"
    assert abs(test.alarm.since - 100_000) < 50


@pytest.mark.parametrize(
    ("change", "within", "place"),
    [
        (lambda scores: np.where(np.arange(len(scores)) % 20, scores, -9.0), 500, "the lowest 1 % of the ID scores"),
        (lambda scores: scores - 1, 100, "in the lowest"),
        (lambda scores: scores + 1, 100, "in the highest"),
        (lambda scores: scores / 4, 100, "the middle 50 % of the ID scores"),
    ],
)
def test_changes_are_found_quickly(change: Callable[[np.ndarray], np.ndarray], within: int, place: str) -> None:
    """From image 3,001: 5 % unknown images, lower scores, higher scores, scores closer to each other."""
    rng = np.random.default_rng(1)
    test = DriftTest(rng.normal(size=2000))
    test.update(rng.normal(size=3000))
    assert test.alarm is None
    test.update(change(rng.normal(size=2000)))
    assert test.alarm is not None
    assert 3000 < test.alarm.image <= 3000 + within
    assert 2900 < test.alarm.since <= test.alarm.image
    assert place in str(test)
    assert test.alarm.images == 5000 - test.alarm.since + 1
    assert test.alarm.share > test.alarm.high - test.alarm.low
    test.reset()
    assert str(test) == "no drift found in 0 images"
    assert test.evidence == 1


def test_split_stream_and_restored_state_change_nothing() -> None:
    rng = np.random.default_rng(2)
    known, stream = rng.normal(size=100), np.concatenate([rng.normal(size=300), rng.normal(-2, size=100)])
    whole = DriftTest(known)
    expected = whole.update(stream)
    found, state = [], DriftTest(known).state()
    for part in np.array_split(stream, 23):
        test = DriftTest(known)
        test.restore(state)
        found += test.update(part).tolist()
        state = parse_json(to_json(test.state()).encode(), DriftState, where="state.json")
    assert found == expected.tolist()
    assert whole.alarm is not None
    assert state == whole.state()


def test_memory_does_not_grow() -> None:
    test = DriftTest(np.arange(20_000))
    before = len(to_json(test.state()))
    test.update(np.arange(5000))
    assert len(test.state().counts) == 1000
    assert len(to_json(test.state())) < 1.2 * before + 1000


def test_states_and_numbers_that_do_not_fit() -> None:
    test = DriftTest([1, 2, 3])
    with pytest.raises(
        InvalidArgumentError, match="the state was saved by a test with other ID scores or another seed"
    ):
        test.restore(DriftTest([1, 2, 4]).state())
    with pytest.raises(DataError, match="the state is damaged"):
        test.restore(msgspec.structs.replace(test.state(), counts=[1]))
    with pytest.raises(InvalidArgumentError, match="at least one ID score, got none"):
        DriftTest([])
    with pytest.raises(InvalidArgumentError, match="expected seed to be at most"):
        DriftTest([1], seed=2**64)
    with pytest.raises(InvalidArgumentError, match="false_alarm_rate"):
        DriftTest([1], false_alarm_rate=1.0)
    with pytest.raises(NonFiniteScoreError, match="1 of 2 scores is NaN"):
        test.update([1, math.nan])
    assert test.num_images == 0
    assert test.update([math.inf, -math.inf]).tolist() > [0.75, 0.0]
    assert test.update([np.finfo(float).max])[0] > 0.5, "rounded to infinity without a warning"


@pytest.mark.parametrize(
    "changed", [{"capital": [-1.0] * 36}, {"since": [9] * 36}, {"hits": [9] * 36}, {"peak": [math.nan] * 36}]
)
def test_numbers_of_a_state_that_contradict_each_other_are_refused(changed: dict[str, Any]) -> None:
    test = DriftTest(np.arange(1000.0))
    test.update([-1.0] * 2)
    with pytest.raises(DataError, match="counts contradict each other"):
        test.restore(msgspec.structs.replace(test.state(), **changed))


@pytest.mark.parametrize("changed", [{"hits": 6}, {"images": 0}, {"since": 0}, {"low": 0.3}, {"image": 9}])
def test_alarms_that_contradict_their_state_are_refused(changed: dict[str, Any]) -> None:
    test = DriftTest(np.arange(1000.0))
    test.update([-1.0] * 5)
    state = test.state()
    test.restore(state)
    assert state.alarm
    with pytest.raises(DataError, match="counts contradict each other"):
        test.restore(msgspec.structs.replace(state, alarm=msgspec.structs.replace(state.alarm, **changed)))


def test_rounding_of_saturated_scores_is_no_change() -> None:
    test = DriftTest([1.0] * 500)
    test.update([1 - 1e-7] * 2000)
    assert test.alarm is None


def test_combinations_of_dependent_detectors_keep_level_and_power() -> None:
    """Scores of two correlated detectors, one rounded to ties, combined by Simes; then one of them shifts."""
    rng = np.random.default_rng(4)

    def draw(number: int, shift: float = 0.0) -> torch.Tensor:
        scores = torch.from_numpy(rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], size=number).T.copy())
        return torch.stack([scores[0] + shift, scores[1].round(decimals=1)])

    ascending = draw(1000).sort(dim=1).values
    known, refused = simes(p_values(ascending, draw(2000)).T), []
    for _ in range(200):  # a gate with alpha on the combined score
        calibration = simes(p_values(ascending, draw(99)).T).sort().values
        refused += (Calibration(calibration, calibration)(simes(p_values(ascending, draw(50)).T)) <= 0.1).tolist()
    assert np.mean(refused) <= 0.1 + 0.01
    assert np.mean(refused) > 0.05
    test = DriftTest(known)
    test.update(simes(p_values(ascending, draw(20_000)).T))
    assert test.alarm is None
    test.update(simes(p_values(ascending, draw(400, shift=-1.5)).T))
    assert test.alarm is not None
    assert test.alarm.image <= 20_200
