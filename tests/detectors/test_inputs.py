"""What detectors refuse, and what must not leak from one fit, mode or batch into another."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit.base.checks import check_ints
from oodlit.detectors import (
    ASH,
    CSP,
    DDU,
    DICE,
    FDBD,
    GEN,
    KNN,
    MSP,
    NCI,
    SHE,
    VRA,
    Cosine,
    Detector,
    Energy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    MCDropout,
    NegLabel,
    NNGuide,
    OpenMax,
    ReAct,
    Residual,
    TemperatureScaledMSP,
    ViM,
    detectors,
    fit,
    load,
    save,
)
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.formulas import percentile as percentile_module
from oodlit.detectors.formulas.gaussian import whitening
from oodlit.detectors.formulas.percentile import check_percentile, percentile
from oodlit.detectors.statistics import ClassMoments, FeatureBank
from oodlit.detectors.statistics.feature_bank import exact_scaling
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs

from .support import narrow_words, small_problem

SMALL: dict[str, Callable[[], Detector]] = {
    key: {
        "knn": lambda: KNN(k=2),
        "nn_guide": lambda: NNGuide(k=2),
        "neg_label": lambda: NegLabel(**narrow_words()),
        "csp": lambda: CSP(**narrow_words()),
    }.get(key, kind)
    for key, kind in detectors().items()
    if not kind().required_needs & {"images", "hidden", "model"}
} | {"ddu full": lambda: DDU("full"), "cosine head": lambda: Cosine("head"), "mean of dice": lambda: ReAct(then=DICE())}


def problem(width: int = 6, classes: int = 4, seed: int = 0) -> tuple[Outputs, Head]:
    """Non-negative features, with a head that gets some of them right."""
    return small_problem(width=width, classes=classes, signed=False, seed=seed)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_a_refit_leaves_nothing_behind(make: Callable[[], Detector]) -> None:
    """An address in memory is used again: what is kept with a batch must not be found under it."""
    test, head = problem(seed=9)
    detector = make()
    for seed in range(4):
        fit([detector], [problem(seed=seed)[0]], head)
        assert torch.equal(detector.score(test), detector.score(Outputs(test.logits, test.features)))


def test_buffers_changed_in_place_are_noticed() -> None:
    train, _ = problem()
    one, other = Mahalanobis(), Mahalanobis()
    fit([one], [train])
    fit([other], [problem(seed=5)[0]])
    before = one.score(train)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one.score(train), other.score(train))
    assert not torch.equal(one.score(train), before)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_inference_mode_does_not_stick(make: Callable[[], Detector]) -> None:
    """A fit within `trainer.predict` can be continued, copied and loaded outside of it."""
    detector = make()
    with torch.inference_mode():
        train, head = problem()
        statistics = make_statistics([detector])
        statistics.update(train)
        detector.fit(statistics, head)
        inside = detector.score(train)
    assert torch.equal(detector.score(train), inside)
    assert not any(buffer.is_inference() for buffer in detector.buffers())
    for twin in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        twin.load_state_dict(detector.state_dict())
        assert torch.equal(twin.score(train), inside)
    statistics.update(problem(seed=1)[0])
    detector.fit(statistics, head)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_scores_carry_no_gradient(make: Callable[[], Detector]) -> None:
    train, head = problem()
    assert train.features is not None
    x = train.features.clone().requires_grad_()
    outputs = Outputs(head(x), x, train.labels)
    detector = make()
    fit([detector], [outputs], head)
    assert not detector.score(outputs).requires_grad


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_other_widths_are_refused(make: Callable[[], Detector], tmp_path: Path) -> None:
    train, head = problem()
    detector = make()
    fit([detector], [train], head)
    assert detector.is_fitted
    save({"d": detector}, tmp_path)
    known = detector.required_needs if detector.required_statistics or "head" in detector.required_needs else ()
    for one in (detector, load(tmp_path)[0]["d"]):
        if "features" in known:
            with pytest.raises(
                InvalidArgumentError, match="outputs have 9 features per image, but the fit was made on 6"
            ):
                one.score(problem(width=9)[0])
        if "logits" in known:
            with pytest.raises(
                InvalidArgumentError, match="outputs have 5 logits per image, but the fit was made on 4"
            ):
                one.score(problem(classes=5)[0])


@pytest.mark.parametrize("make", [SHE, ViM, FDBD, OpenMax, KLMatching, lambda: DDU("full"), lambda: KNN(k=2)])
def test_widths_that_change_within_a_fit_are_refused(make: Callable[[], Detector]) -> None:
    train, head = problem()
    other = problem(width=9)[0] if "features" in make().required_needs else problem(classes=5)[0]
    with pytest.raises(
        InvalidArgumentError, match=r"a training batch has [59] (features|logits) per image, but earlier batches"
    ):
        fit([make()], [train, other], head)


@pytest.mark.parametrize("make", [ViM, FDBD, NCI, ReAct, VRA, DICE, Residual])
def test_a_head_of_another_width_is_refused(make: Callable[[], Detector]) -> None:
    with pytest.raises(
        InvalidArgumentError, match="the head is for 9 features per image, but the training images have 6"
    ):
        fit([make()], [problem()[0]], problem(width=9)[1])


@pytest.mark.parametrize("make", [ViM, FDBD, NCI, ReAct, VRA, DICE, Residual, ASH, lambda: Cosine("head")])
@pytest.mark.parametrize("field", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_that_is_not_finite_is_refused(make: Callable[[], Detector], field: str, value: float) -> None:
    train, head = small_problem(signed=False)
    tensors = {"weight": head.weight.clone(), "bias": head.offset.clone()}
    tensors[field][0] = value
    with pytest.raises(InvalidArgumentError, match="the head contains NaN or infinite values"):
        fit([make()], [train], Head(**tensors))


@pytest.mark.parametrize("make", [ViM, FDBD, NCI, ReAct, VRA, DICE, Residual, lambda: Cosine("head")])
def test_a_head_that_masks_a_class(make: Callable[[], Detector]) -> None:
    """By a bias of minus infinity."""
    train, head = small_problem()
    bias = head.offset.clone()
    bias[1] = -math.inf
    masked, detector = Head(head.weight, bias), make()
    x = train.require("features")
    outputs = Outputs(masked(x), x, train.labels)
    fit([detector], [outputs], masked)
    assert detector.score(outputs).isfinite().all()


def test_a_masked_class_does_not_move_the_percentile_of_contributions() -> None:
    """DICE cuts a share of the weights of the other classes, as if the masked class was not there."""
    train, head = small_problem()
    weight, bias, rest = head.weight.clone(), head.offset.clone(), torch.arange(len(head.weight)) != 1
    weight[1], bias[1] = 0, -math.inf
    x, found = train.require("features"), []
    for used in (Head(weight, bias), Head(weight[rest], bias[rest])):
        detector = DICE(percentile=30)
        fit([detector], [Outputs(used(x), x)], used)
        found.append(detector.score(Outputs(used(x), x)))
    torch.testing.assert_close(*found)


def test_a_masked_class_does_not_move_the_origin() -> None:
    """W u = -b has no equation for it: the origin is that of the head without the class."""
    train, head = small_problem()
    bias, rest = head.offset.clone(), torch.arange(len(head.weight)) != 1
    bias[1] = -math.inf
    origins = []
    for used in (Head(head.weight, bias), Head(head.weight[rest], bias[rest])):
        detector = Residual()
        fit([detector], [Outputs(features=train.features, labels=train.labels)], used)
        origins.append(detector.origin)
    assert torch.equal(*origins)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(make: Callable[[], Detector], value: float) -> None:
    """In training as well: one such image would spoil every mean, and a factorisation might never end."""
    train, head = problem()
    detector = make()
    fit([detector], [train], head)
    assert train.logits is not None
    assert train.features is not None
    kind = "NaN" if math.isnan(value) else "infinite values"
    for field in sorted(detector.required_needs & {"logits", "features"}):
        spoilt = {"logits": train.logits.clone(), "features": train.features.clone()}
        spoilt[field][1, 2] = value
        outputs = Outputs(
            spoilt["logits"], spoilt["features"], train.labels, keys=[f"set/{i}" for i in range(len(train))]
        )
        message = rf"found {kind} in {field} of 1 of {len(train)} images \(first: set/1\)"
        with pytest.raises(InvalidArgumentError, match=message):
            detector.score(outputs)
        with pytest.raises(InvalidArgumentError, match=rf"found {kind} in {field} .*\(first rows: 1\)"):
            detector.score(Outputs(spoilt["logits"], spoilt["features"]))
        if any(field in kind_.needs for kind_ in detector.required_statistics):
            with pytest.raises(InvalidArgumentError, match=message):
                fit([make()], [outputs], head)


@pytest.mark.parametrize("detector", [MSP(), MaxLogit(), Energy(), GEN()], ids=repr)
def test_masked_classes_are_allowed(detector: Detector) -> None:
    masked = Outputs(torch.tensor([[1.0, 0.5, -float("inf")]]))
    plain = Outputs(torch.tensor([[1.0, 0.5]]))
    torch.testing.assert_close(detector.score(masked), detector.score(plain))
    with pytest.raises(InvalidArgumentError, match="infinite values in logits"):
        detector.score(Outputs(torch.full((1, 3), -float("inf"))))


@pytest.mark.parametrize("make", [lambda: NNGuide(k=2), FDBD, GradNorm], ids=["nn_guide", "fdbd", "grad_norm"])
def test_extreme_values_have_finite_scores(make: Callable[[], Detector]) -> None:
    train, head = problem()
    detector = make()
    fit([detector], [train], head)
    logits = torch.tensor([[3e38, -3e38, 0.0, 0.0], [-3e38, -3e38, -3e38, -3e38]])
    for features in (torch.full((2, 6), 3e37), torch.full((2, 6), 1e-38), torch.zeros(2, 6)):
        assert detector.score(Outputs(logits, features)).isfinite().all()


@pytest.mark.parametrize("value", [0.0, 3.0, 3e38])
@pytest.mark.parametrize("make", [FDBD, NCI])
def test_an_image_at_the_mean_has_a_finite_score(make: Callable[[], Detector], value: float) -> None:
    detector, head, x = make(), Head(torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])), torch.full((4, 2), value)
    outputs = Outputs(head(x.double()), x)
    fit([detector], [outputs], head)
    assert detector.score(outputs).isfinite().all()


@pytest.mark.parametrize("make", [SHE, OpenMax, TemperatureScaledMSP])
def test_labels_without_a_logit_are_refused(make: Callable[[], Detector]) -> None:
    train, head = problem()
    assert train.labels is not None
    labels = train.labels.clone()
    labels[3] = 7
    with pytest.raises(InvalidArgumentError, match="labels from 0 to 3 for 4 logits, got label 7"):
        fit([make()], [Outputs(train.logits, train.features, labels)], head)


# Types of constructors are checked by the tests' own hook; these functions are what a user meets.
@pytest.mark.parametrize("value", [2.5, True, "3", None, 1.0])
def test_settings_that_are_no_whole_numbers(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"KNN: expected k to be an integer >= 1, got {value!r}")):
        check_ints("KNN", k=value)


@pytest.mark.parametrize("value", ["90", True, None, float("nan"), -1, 101.0])
def test_settings_that_are_no_percentiles(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"ASH: expected a percentile in [0, 100], got {value!r}")):
        check_percentile("ASH", value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KNN(k=True), "KNN: expected k to be an integer >= 1, got True"),
        (lambda: Residual(dim=0), "Residual: expected dim to be at least 1, got 0"),
        (lambda: OpenMax(tail=1), "OpenMax: expected tail to be at least 2, got 1"),
        (lambda: GEN(top=0), "GEN: expected top to be at least 1, got 0"),
        (lambda: MCDropout(passes=0), "MCDropout: expected passes to be at least 1, got 0"),
        (lambda: NNGuide(bank_size=0), "NNGuide: expected bank_size to be at least 1, got 0"),
        (lambda: ReAct(threshold=float("nan")), "ReAct: expected threshold to be a number"),
    ],
)
def test_settings_out_of_range(make: Callable[[], Detector], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        make()


def test_signed_features_are_noted_by_vra() -> None:
    train, head = small_problem(signed=True)
    detector = VRA()
    fit([detector], [train], head)
    assert detector.notes == ("features have negative values; VRA was proposed for non-negative ones",)


def test_keys_that_are_no_text() -> None:
    bank = FeatureBank()
    bank.update(Outputs(features=torch.eye(2), keys=["set/\udcff", "set/ü"]))
    assert bank.num_kept == 2


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    rows=st.one_of(st.none(), st.integers(1, 12)),
    looked_at=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_the_bank_is_the_sorted_head(sizes: list[int], rows: int | None, looked_at: int, seed: int) -> None:
    """Whenever it is looked at in between, and however the images come in."""
    total = sum(sizes)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    values = torch.arange(float(total))[:, None]
    whole = FeatureBank(None)
    whole.update(Outputs(features=values, keys=[str(i) for i in range(total)]))
    bank = FeatureBank(rows)
    for i, part in enumerate(torch.split(order, sizes)):
        bank.update(Outputs(features=values[part], keys=[str(int(j)) for j in part]))
        if i == looked_at:
            assert bank.num_kept == len(bank.bank()[0])
    for column, expected in zip(bank.bank(), whole.bank(rows), strict=True):
        assert torch.equal(column, expected)
    assert bank.num_samples == total


@pytest.mark.parametrize("percent", [0.0, 1.0, 50.0, 90.0, 99.0, 99.99, 100.0])
@pytest.mark.parametrize("kind", ["random", "sorted", "reversed", "tied", "zeros", "periodic"])
def test_percentiles_of_many_values(monkeypatch: pytest.MonkeyPatch, percent: float, kind: str) -> None:
    """The short cut by a sample, at every kind of data that could mislead it."""
    monkeypatch.setattr(percentile_module, "SAMPLE", 2**6)
    values = torch.randn(3001, generator=torch.Generator().manual_seed(1))
    values = {
        "random": values,
        "sorted": values.sort().values,
        "reversed": values.sort(descending=True).values,
        "tied": values.round(),
        "zeros": values.clamp(min=1.5),
        "periodic": torch.arange(3001.0) % (3001 // 2**6),
    }[kind]
    assert percentile(values, percent) == pytest.approx(
        np.percentile(values.double().numpy(), percent), rel=1e-6, abs=1e-9
    )


@given(exponent=st.integers(-140, 120), seed=st.integers(0, 20))
def test_scaling_rounds_nothing(exponent: int, seed: int) -> None:
    rows = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2.0**exponent
    rows = torch.cat([rows.float(), torch.zeros(1, 4)])
    scaled = exact_scaling(rows)
    assert scaled[:3].amax(dim=1).ge(0.5).all()
    assert scaled.lt(1).all()
    ratios = rows[:3].double().amax(dim=1) / scaled[:3].double().amax(dim=1)
    assert torch.equal(scaled[:3].double() * ratios[:, None], rows[:3].double())


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-7, 1e-9, 1e-13])
def test_both_ways_to_whiten_agree(spread: float) -> None:
    """Distances by a Cholesky factor and by eigenvectors; the smallest variance is `spread` of the largest."""
    basis = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).Q
    values = torch.tensor([1.0, 0.7, 0.5, 0.3, spread], dtype=torch.float64)
    factor = whitening(basis * values @ basis.T)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = ((x @ basis).square() / values.clamp(min=1e-12)).sum(dim=1)
    tolerance = max(1e-9, 1e-15 / max(spread, 1e-12))
    torch.testing.assert_close((x @ factor).square().sum(dim=1), expected, rtol=10 * tolerance, atol=0)


def test_moments_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        moments = ClassMoments()
        moments.update(Outputs(features=torch.eye(3), labels=torch.tensor([0, 1, 2])))
    moments.update(Outputs(features=torch.eye(3), labels=torch.tensor([0, 1, 2])))
    assert moments.num_samples == 6
