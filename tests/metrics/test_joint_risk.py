"""Joint risk of known and unknown images: formulas against plain loops, intervals by simulation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning, augrc, joint_augrc, joint_risk, operating_point, risk_curve
from oodlit.metrics.joint_ranking import JointRanking, joint_augrc_interval, joint_augrc_of

SCORES = st.integers(0, 6).map(float)
PRIORS = st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
ID = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=12)
OOD = st.lists(SCORES, min_size=1, max_size=9)


def _steps(images: list[tuple[float, bool]], ood: list[float], prior: float) -> list[tuple[float, float, float]]:
    """Threshold, coverage and mass of errors at every distinct score, by a plain loop."""
    found = []
    for threshold in sorted({s for s, _ in images} | set(ood), reverse=True):
        coverage = errors = 0.0
        for score, correct in images:
            if score >= threshold:
                coverage += (1 - prior) / len(images)
                errors += 0 if correct else (1 - prior) / len(images)
        for score in ood:
            if score >= threshold:
                coverage += prior / len(ood)
                errors += prior / len(ood)
        found.append((threshold, coverage, errors))
    return found


@given(ID, OOD, PRIORS)
def test_augrc_is_the_trapezoid_over_coverage(images: list[tuple[float, bool]], ood: list[float], prior: float) -> None:
    """Tied images are accepted together, as one straight step."""
    area, before = 0.0, (0.0, 0.0)
    for _, coverage, errors in _steps(images, ood, prior):
        area += (coverage - before[0]) * (errors + before[1]) / 2
        before = coverage, errors
    scores, correct = [s for s, _ in images], [c for _, c in images]
    assert joint_augrc(scores, ood, is_correct=correct, prior=prior) == pytest.approx(area, abs=1e-12)


@given(ID, OOD)
def test_without_unknown_images_it_is_augrc(images: list[tuple[float, bool]], ood: list[float]) -> None:
    scores, correct = [s for s, _ in images], [c for _, c in images]
    assert joint_augrc(scores, ood, is_correct=correct, prior=0) == pytest.approx(augrc(scores, correct), abs=1e-15)
    assert joint_augrc(scores, ood, is_correct=correct, prior=1) == 0.5


@given(ID, OOD, PRIORS)
def test_curve_against_a_loop(images: list[tuple[float, bool]], ood: list[float], prior: float) -> None:
    curve = risk_curve([s for s, _ in images], ood, is_correct=[c for _, c in images], prior=prior)
    expected = [(t, c, e / c) for t, c, e in _steps(images, ood, prior) if c > 0]
    found = torch.stack([curve.threshold, curve.coverage, curve.risk], dim=1).numpy()
    np.testing.assert_allclose(found, np.array(expected), rtol=0, atol=1e-12)
    assert float(curve.coverage[-1]) == pytest.approx(1, abs=1e-12)


@given(ID, OOD, PRIORS, st.floats(0.01, 1), st.sampled_from(["max_risk", "coverage", "tpr"]))
def test_operating_point_against_a_loop(
    images: list[tuple[float, bool]], ood: list[float], prior: float, share: float, kind: str
) -> None:
    scores, correct = [s for s, _ in images], [c for _, c in images]
    steps = [(t, c, e / c) for t, c, e in _steps(images, ood, prior) if c > 0]
    if kind == "max_risk":
        fits = [step for step in steps if step[2] <= share]
        if not fits:
            with pytest.raises(InvalidArgumentError, match="no threshold has a risk of at most"):
                operating_point(scores, ood, is_correct=correct, prior=prior, max_risk=share)
            return
        expected = fits[-1]
    elif kind == "coverage":
        expected = next(step for step in steps if step[1] >= share - 1e-12)
    else:
        reached = next(t for t in sorted(scores, reverse=True) if sum(s >= t for s in scores) >= share * len(scores))
        expected = [step for step in steps if step[0] >= reached][-1] if prior < 1 else ()  # type: ignore[assignment]
        if prior == 1:
            return
    point = operating_point(scores, ood, is_correct=correct, prior=prior, **{kind: share})
    assert (point.threshold, point.coverage, point.risk) == pytest.approx(expected, abs=1e-12)
    assert point.risk_low <= point.risk <= point.risk_high
    assert point.tpr == sum(s >= point.threshold for s in scores) / len(scores)
    assert point.fpr == sum(s >= point.threshold for s in ood) / len(ood)


def test_no_errors_and_only_errors() -> None:
    perfect = joint_augrc([3.0, 4.0], [1.0, 2.0], is_correct=[True, True], prior=0.2)
    assert perfect == pytest.approx(0.2**2 / 2, abs=1e-15)
    assert joint_augrc([3.0, 4.0], [1.0, 2.0], is_correct=[False, False], prior=0.2) == 0.5
    point = operating_point([3.0, 4.0], [1.0, 2.0], is_correct=[True, True], prior=0.2, tpr=1)
    assert (point.risk, point.risk_low, point.coverage) == (0, 0, 0.8)
    assert point.risk_high > 0.3, "two images say little"


@pytest.mark.parametrize("prior", [-0.01, 1.01, math.nan, "much", True])
def test_priors_out_of_range(prior: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"prior to be in \[0, 1\]"):
        joint_augrc([1.0], [0.0], is_correct=[True], prior=prior)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_options", [{}, {"tpr": 0.9, "coverage": 0.9}])
def test_exactly_one_wish(given_options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected exactly one of max_risk, coverage and tpr"):
        operating_point([1.0], [0.0], is_correct=[True], prior=0.1, **given_options)


def test_empty_groups() -> None:
    with pytest.warns(UndefinedMetricWarning, match="no OOD score"):
        assert math.isnan(joint_augrc([1.0], [], is_correct=[True], prior=0.1))
    with pytest.raises(InvalidArgumentError, match="no OOD score"):
        risk_curve([1.0], [], is_correct=[True], prior=0.1)
    with pytest.raises(InvalidArgumentError, match=r"^expected ID and OOD scores, but there is no ID score"):
        operating_point([], [1.0], is_correct=[], prior=0.1, tpr=0.9)


@pytest.mark.parametrize(("n", "m", "prior"), [(300, 60, 0.3), (200, 200, 0.05), (60, 30, 0.5)])
def test_intervals_cover(n: int, m: int, prior: float) -> None:
    """Nominally 95 %; the truth comes from a sample of 40,000 images."""
    random = np.random.default_rng(0)

    def draw(n: int, m: int) -> JointRanking:
        correct = random.random(n) < 0.8
        scores = random.normal(size=n) + 1.2 * correct + 1
        return JointRanking.of(scores, random.normal(size=m), correct)

    truth = joint_augrc_of(draw(40_000, 40_000), prior)
    repetitions = 300
    hits = 0
    for _ in range(repetitions):
        low, high = joint_augrc_interval(draw(n, m), prior, 0.95)
        hits += low <= truth <= high
    assert hits / repetitions >= 0.91


def test_a_risk_equal_to_the_largest_one_is_accepted() -> None:
    """The risk is 0.2 + 0.8 / 2 = 0.6, which floating-point numbers add up to a little more."""
    point = operating_point([1.0, 1.0], [1.0], is_correct=[True, False], prior=0.2, max_risk=0.6)
    assert (point.threshold, point.coverage) == (1.0, 1.0)


def test_a_threshold_that_accepts_no_traffic_has_no_risk() -> None:
    """At a prior of 1, ID images have no weight, and the threshold refuses all OOD images."""
    scores = {"id_scores": [0.9, 0.8], "ood_scores": [0.1], "is_correct": [True, True], "prior": 1}
    point = operating_point(**scores, tpr=0.5)
    assert (point.threshold, point.coverage, point.tpr, point.fpr) == (0.9, 0.0, 0.5, 0.0)
    assert math.isnan(point.risk)
    assert math.isnan(joint_risk(**scores, tpr=0.5))
