"""Detectors made of other detectors: by plain loops, with a guarantee, and computed once."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.callbacks import OODDetection
from oodlit.configuration import make, plan
from oodlit.detectors import (
    KNN,
    MSP,
    ODIN,
    SIRC,
    Combined,
    CoRP,
    Detector,
    Energy,
    Entropy,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    Residual,
    benjamini_yekutieli,
    fit,
    load,
    overview,
    save,
)
from oodlit.detectors.contract.class_paths import from_config
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.formulas import p_values as module
from oodlit.detectors.formulas.p_values import p_values, simes
from oodlit.errors import InvalidArgumentError, NotFittedError, RequirementError
from oodlit.outputs import BackboneFacts, Outputs

from .formulas import PROBLEMS, Array, Problem, each, entropy, knn, msp, residual_norms
from .recent_formulas import combined, p_value, refused, sirc
from .support import cut, permutation, small_problem

NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.sampled_from([-math.inf, math.inf]))


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.lists(NUMBERS, min_size=1, max_size=8))
def test_p_values_are_those_of_plain_loops(calibration: list[float], scores: list[float]) -> None:
    found = p_values(double(sorted(calibration)), double(scores))
    finite = [math.isfinite(s) and all(map(math.isfinite, calibration)) for s in scores]
    for s, p, is_finite in zip(scores, found.tolist(), finite, strict=True):
        conformal = (1 + sum(c <= s for c in calibration)) / (len(calibration) + 1)
        assert conformal <= p <= conformal + 1 / (len(calibration) + 1) + 1e-12
        if is_finite:
            assert p == pytest.approx(p_value(s, calibration), rel=1e-12)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.lists(NUMBERS, min_size=1, max_size=8))
def test_p_values_while_tracing_are_the_same(calibration: list[float], scores: list[float]) -> None:
    ascending, values = double(sorted(calibration)), double([*scores, *calibration])
    expected = p_values(ascending, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_traced", lambda: True)
        assert torch.equal(p_values(ascending, values), expected)


def test_a_score_that_is_no_number_has_no_p_value() -> None:
    assert p_values(double([0.0, 1.0]), double([math.nan, 2.0])).isnan().tolist() == [True, False]
    assert simes(double([[0.1, math.nan]])).isnan().all()
    assert not benjamini_yekutieli(double([[math.nan]]), 0.5).any()


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), st.floats(0.01, 0.99))
def test_tests_of_several_p_values(p: list[float], alpha: float) -> None:
    ordered = sorted(p)
    expected = min(len(p) * ordered[i - 1] / i for i in range(1, len(p) + 1))
    assert float(simes(double([p]))) == pytest.approx(expected, rel=1e-12)
    assert bool(benjamini_yekutieli(double([p]), alpha)) == refused(np.array(p), alpha)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan, "0.1", True])
def test_levels_out_of_range(alpha: Any) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    with pytest.raises(InvalidArgumentError, match="expected alpha to be between 0 and 1"):
        benjamini_yekutieli(double([[0.5]]), alpha)
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.7, 1.0])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_at_most_alpha_of_exchangeable_images_is_refused(correlation: float, alpha: float) -> None:
    """Two parts of any dependence, one of them rounded to ties: 200 calibrations, each with 200 new images."""
    rng, rates = np.random.default_rng(5), []
    for _ in range(200):
        scores = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size=299).T.copy()
        scores[1] = scores[1].round(1)
        known, new = torch.from_numpy(scores[:, :99]).sort(dim=1).values, torch.from_numpy(scores[:, 99:])
        p = torch.stack([p_values(known[part], new[part]) for part in range(2)], dim=1)
        rates.append(float(benjamini_yekutieli(p, alpha).double().mean()))
    assert np.mean(rates) <= alpha + 3 * np.std(rates) / len(rates) ** 0.5
    assert np.mean(rates) > alpha / 3


def training_scores(given: Problem, part: Detector) -> Array:
    return replace(given, q=given.x, zq=given.zx).scores(part)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_combined_is_that_of_plain_loops(kind: str) -> None:
    given = PROBLEMS[kind]()
    parts = [lambda: KNN(9), Energy, Entropy, lambda: NNGuide(k=2)]
    scores = given.scores(Combined([part() for part in parts]))
    expected = combined([given.scores(p()) for p in parts], [training_scores(given, p()) for p in parts])
    # Scores of other batches differ by rounding, which a p-value multiplies by the density of the calibration scores.
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_combined_from_its_own_p_values() -> None:
    train, head = small_problem()
    detector = Combined([Mahalanobis(), Energy(), KNN(k=3)])
    fit([detector], [train], head)
    p, outputs = detector.p_values(train), Outputs(train.logits, train.features)
    scores = torch.stack([part.score(outputs).double() for part in detector.nested_detectors()])
    expected = combined(list(scores.numpy()), list(scores.numpy()))
    np.testing.assert_allclose(detector.score(train), expected, rtol=1e-12)
    loops = [[p_value(s, row) for s in row] for row in scores.tolist()]
    np.testing.assert_allclose(p.T, loops, rtol=1e-12)


def test_one_part_keeps_its_order_and_its_ties() -> None:
    train, head = small_problem()
    alone, detector = MaxLogit(), Combined([MaxLogit()])
    fit([alone, detector], [train], head)
    logits = torch.linspace(float(train.max_logits.min()), float(train.max_logits.max()), 999)
    probe = Outputs(torch.stack([logits, logits - 1], dim=1).repeat_interleave(2, dim=0).repeat(1, 2))
    before, after = alone.score(probe).double(), detector.score(replace(probe, logits=_wide(probe, train)))
    assert torch.equal(before[:, None] > before, after[:, None] > after)


def _wide(probe: Outputs, train: Outputs) -> torch.Tensor:
    """The logits with as many classes as in training; the others never are the largest."""
    logits = probe.require("logits")[:, :1]
    return torch.cat([logits, (logits - 9).expand(-1, train.require("logits").shape[1] - 1)], dim=1)


S2 = {
    "norm": (lambda: None, lambda p, q: np.abs(q).sum(axis=1)),
    "residual": (Residual, lambda p, q: -residual_norms(p, q, None)),
    "knn": (lambda: KNN(9), lambda p, q: knn(replace(p, q=q), 9)),
}


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("second", S2)
def test_sirc_is_that_of_plain_loops(second: str, kind: str) -> None:
    given, (part, formula) = PROBLEMS[kind](), S2[second]
    if second == "residual" and np.ptp(formula(given, given.x)) < 1e-9:
        return  # no training image has a residual
    tests, training = formula(given, given.q), formula(given, given.x)
    for s1, distance in {MSP: lambda z: -math.expm1(msp(z)), Entropy: lambda z: -entropy(z)}.items():
        far = each(given.zq, distance)
        clear = far > 1e-12  # where the loops keep digits
        found, expected = given.scores(SIRC(s1(), part()))[clear], sirc(far[clear], tests[clear], training)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sirc_keeps_the_order_of_images_whose_softmax_rounds_to_one() -> None:
    train, head = small_problem()
    detector = SIRC()
    fit([detector], [train], head)
    logits = torch.zeros(4, train.require("logits").shape[1])
    logits[:, 0] = torch.tensor([20.0, 50.0, 90.0, 1e4])
    scores = detector.score(Outputs(logits, train.require("features")[:1].expand(4, -1)))
    assert scores.isfinite().all()
    assert (scores.diff() > 0).all()


def test_sirc_needs_a_score_that_varies() -> None:
    same = Outputs(torch.zeros(3, 2), torch.ones(3, 2))
    with pytest.raises(RequirementError, match=r"SIRC\(\): expected s2 to have .* over 3 training images"):
        fit([SIRC()], [same])


def test_held_out_calibration_does_not_depend_on_batches() -> None:
    train, head = small_problem()
    fitted, held_out = train.select(slice(0, 120)), train.select(slice(120, None))
    scores = []
    for size in (7, 80):
        detector = Combined([Mahalanobis(), KNN(k=2)], calibration="validation", size=50)
        fit([detector], [fitted], head)
        with pytest.raises(NotFittedError, match=r"no calibration scores; call fit, and then calibrate$"):
            detector.score(train)
        detector.calibrate(cut(held_out, size, permutation(len(held_out), seed=size)))
        assert detector.ascending.shape == (2, 50)
        scores.append(detector.score(train))
    torch.testing.assert_close(*scores)
    assert make_statistics([detector]).keys() == make_statistics([Mahalanobis(), KNN(k=2)]).keys()
    facts = BackboneFacts(num_train=200)
    assert detector.why_not(facts) == ""
    assert "needs calibration scores" in Combined([MSP()], "validation").why_not(facts)
    outputs, before = Outputs(train.logits, train.features), detector.score(train)
    assert torch.equal(detector.score(outputs), before)
    detector.calibrate([fitted])
    assert not torch.equal(detector.score(outputs), before)
    fit([detector], [fitted], head)  # a new fit drops scores of the old one
    with pytest.raises(NotFittedError, match="no calibration scores"):
        detector.score(train)
    with pytest.raises(InvalidArgumentError, match="at least one image to calibrate on"):
        detector.calibrate([])
    with pytest.raises(InvalidArgumentError, match='calibrate requires the setting calibration="validation"'):
        Combined().calibrate([train])


def test_an_outer_combination_notices_that_an_inner_one_was_calibrated_again() -> None:
    train, head = small_problem()
    inner = Combined([Energy(), KNN(k=2)], calibration="validation")
    outer = Combined([inner, MSP()], calibration="validation")
    fit([outer], [train], head)
    inner.calibrate([train.select(slice(0, 60))])
    outer.calibrate([train.select(slice(60, None))])
    before = outer.score(train)
    assert torch.equal(copy.deepcopy(outer).score(train), before)
    inner.calibrate([train.select(slice(0, 20))])
    with pytest.raises(NotFittedError, match=r"Combined\(parts=\[Combined.*a part was fitted or calibrated after"):
        outer.score(replace(train))
    outer.calibrate([train.select(slice(60, None))])
    assert not torch.equal(outer.score(replace(train)), before)


@pytest.mark.parametrize("make_it", [lambda: Combined([Energy(), Residual()]), lambda: SIRC(s2=Residual())])
def test_a_part_that_was_fitted_alone_is_noticed(make_it: Any, tmp_path: Path) -> None:
    train, head = small_problem()
    detector = make_it()
    fit([detector], [train], head)
    before = detector.score(train)
    save({"it": detector}, tmp_path / "fit")
    loaded = load(tmp_path / "fit")[0]["it"]
    assert torch.equal(loaded.score(replace(train)), before)
    for owner in (detector, loaded):
        fit([owner.nested_detectors()[1]], [train.select(slice(0, 90))], head)
        with pytest.raises(NotFittedError, match="a part was fitted or calibrated after"):
            owner.score(replace(train))
        fit([owner], [train], head)
        assert torch.equal(owner.score(replace(train)), before)


def test_training_scores_of_a_bank_are_noted() -> None:
    train, head = small_problem()
    combinations = [Combined([Energy(), KNN(k=1)]), Combined([Energy(), Mahalanobis()])]
    fit(combinations, [train], head)
    noted = [
        any("calibrated on training images. If they are in the bank of KNN(k=1)" in n for n in d.notes)
        for d in combinations
    ]
    assert noted == [True, False]
    assert (combinations[0].p_values(train.select(slice(0, 9)))[:, 1] > 0).all()


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Combined([]), "Combined: expected at least one part, got none"),
        (lambda: Combined(MSP()), r"expected parts to be a list of Detector objects, got MSP\(\); write \[MSP\(\)\]"),
        (lambda: Combined([MSP(), MSP()]), r"expected every part once, got MSP\(\) twice"),
        (lambda: Combined([MSP()], "test"), "expected calibration to be 'train' or 'validation', got 'test'"),
        (lambda: Combined([ODIN()]), r'ODIN\(\), which reads images, model; set calibration="validation"'),
        (lambda: SIRC(s2=ODIN()), r"ODIN\(\), which reads images, model; use other detectors"),
        (lambda: SIRC(Energy()), r"SIRC: expected s1 to be MSP\(\), Entropy\(\) or .*, got Energy\(\)"),
        (lambda: SIRC(MSP), r"SIRC: expected detectors as parts, got .*; write MSP\(\)"),
    ],
)
def test_parts_that_do_not_fit(make_it: Any, message: str) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    with pytest.raises(InvalidArgumentError, match=message):
        make_it()
    jaxtyping.config.update("jaxtyping_disable", False)


def test_costs_and_needs_are_those_of_the_parts() -> None:
    assert overview(Combined()).cost == overview(SIRC(s2=KNN())).cost == "bank"
    assert overview(SIRC()).cost == "closed form"
    held_out = Combined([ODIN(), MSP()], calibration="validation")
    assert overview(held_out).cost == "2 extra forward passes"
    assert held_out.required_needs == {"images", "logits", "model"}
    assert Combined([MSP(), Energy()]).required_needs == {"logits"}
    assert SIRC(Entropy(), Residual()).required_needs == {"logits", "features", "head"}


def test_parts_by_name_in_a_configuration() -> None:
    parts = ["MSP", {"class_path": "KNN", "init_args": {"k": 3}}]
    written = {"class_path": "Combined", "init_args": {"parts": parts, "size": 9}}
    found = make(plan(written, Detector, "detectors"))
    assert repr(found) == "Combined(parts=[MSP(), KNN(k=3)], size=9)"
    assert repr(from_config(detector_to_config(found), Detector)) == repr(found)
    written = {"class_path": "SIRC", "init_args": {"s1": "Entropy", "s2": "Residual"}}
    assert repr(make(plan(written, Detector, "detectors"))) == "SIRC(s1=Entropy(), s2=Residual())"


def test_names_stay_names_where_an_argument_accepts_text() -> None:
    """A name became the description of an object that nobody built."""
    written = {
        "class_path": "oodlit.callbacks.OODDetection",
        "init_args": {"detectors": ["MSP", {"class_path": "KNN"}]},
    }
    assert list(make(plan(written, OODDetection, "callback")).detectors) == ["msp", "knn"]


def test_states_of_equal_statistics_with_other_settings_are_kept_apart() -> None:
    train, _ = small_problem()
    parts = [CoRP(gamma=1.0, size=8), CoRP(gamma=2.0, size=8)]
    statistics, again = (make_statistics([Combined(parts)]) for _ in range(2))
    statistics.update(train)
    again.restore(statistics.state())
    scores = []
    for accumulated in (statistics, again):
        detector = Combined(parts)
        detector.fit(accumulated)
        scores.append(detector.score(train))
    assert torch.equal(*scores)


def test_states_of_earlier_versions_are_read() -> None:
    train, _ = small_problem()
    statistics = make_statistics([CoRP(size=8)])
    statistics.update(train)
    state = statistics.state()
    of_moments = state["statistics"].pop("fourier_moments(8, 3.0, 0)")
    state["statistics"]["FourierMoments"] = of_moments
    again = make_statistics([CoRP(size=8)])
    again.restore(state)
    assert again.num_samples == len(train)
    with pytest.raises(InvalidArgumentError, match=r"saved statistics \(FourierMoments\) are ambiguous"):
        make_statistics([CoRP(size=8), CoRP(size=9)]).restore(state)
