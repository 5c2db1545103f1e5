"""Faults that users of comparable tools met: one test per kind, named after it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from oodlit.detectors import (
    ASH,
    DDU,
    DICE,
    FDBD,
    GEN,
    KNN,
    MSP,
    NCI,
    SCALE,
    SHE,
    VRA,
    BackboneFacts,
    Cosine,
    Detector,
    Energy,
    Entropy,
    FitOrigin,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    OpenMax,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    Residual,
    ViM,
    fit,
)
from oodlit.detectors.formulas.percentile import percentile
from oodlit.errors import FingerprintError, InvalidArgumentError, RequirementError
from oodlit.outputs import Head, Outputs, unit

from .support import normal, small_problem

LABELLED = [Mahalanobis, RelativeMahalanobis, Cosine, RelativeCosine, DDU, lambda: DDU("full"), lambda: DDU("diagonal")]
SHAPINGS = [ASH, lambda: ASH(variant="p"), lambda: ASH(variant="b"), SCALE, ReAct, VRA]


def fitted(detector: Detector, train: Outputs, head: Head | None = None) -> Detector:
    fit([detector], [train], head)
    return detector


# Singular covariance; absolute constant where a relative one is needed
@pytest.mark.parametrize("scale", [1e-15, 1e-4, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("make", [Mahalanobis, RelativeMahalanobis, DDU, lambda: DDU("full"), lambda: DDU("diagonal")])
def test_singular_covariance(make: type[Detector], scale: float) -> None:
    """A constant column, and a direction that training hardly used, at every scale of the features."""
    train = torch.tensor([[-1, -0.1, 3], [1, 0.1, 3], [-1, 0.1, 3], [1, -0.1, 3]]) * scale
    test = torch.tensor([[2, 0, 3], [0, 1, 3], [0, 0, 4]]) * scale
    detector = fitted(make(), Outputs(features=train.double(), labels=torch.zeros(4, dtype=torch.int64)))
    scores = detector.score(Outputs(features=test.double()))
    assert scores.isfinite().all()
    if make is not RelativeMahalanobis:  # with one class it subtracts the same distance: zero everywhere
        assert scores[0] > scores[1] > scores[2]


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("make", [Mahalanobis, RelativeMahalanobis, DDU, lambda: DDU("full"), lambda: DDU("diagonal")])
def test_multiplying_all_features_keeps_the_ranking(make: type[Detector], scale: float) -> None:
    train, _ = small_problem()
    test = normal(50, 6, seed=4).double()
    scores = [
        fitted(make(), Outputs(features=train.require("features") * s, labels=train.labels)).score(
            Outputs(features=test * s)
        )
        for s in (1.0, scale)
    ]
    assert torch.equal(scores[0].argsort(), scores[1].argsort())


# Missing class or labels with gaps in the fit data
@pytest.mark.parametrize("make", LABELLED)
def test_labels_with_gaps(make: type[Detector]) -> None:
    """Labels 0, 5 and 9 only give the scores of labels 0, 1 and 2."""
    x = normal(60, 4).double()
    few = torch.arange(60) % 3
    gaps = torch.tensor([0, 5, 9])[few]
    test = Outputs(features=normal(9, 4, seed=1).double())
    a, b = (fitted(make(), Outputs(features=x, labels=y)).score(test) for y in (few, gaps))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", LABELLED)
def test_one_image_per_class_and_one_class(make: type[Detector]) -> None:
    test = Outputs(features=normal(9, 4, seed=1))
    for labels in (torch.arange(12), torch.zeros(12, dtype=torch.int64), torch.tensor([0] * 11 + [3])):
        assert fitted(make(), Outputs(features=normal(12, 4), labels=labels)).score(test).isfinite().all()


def test_classes_without_a_right_image_are_noted() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    train = Outputs(torch.tensor([[2.0, 0, 0, 0], [2.0, 0, 0, 0], [0, 0, 2.0, 0]]), x, torch.tensor([0, 1, 2]))
    detector = fitted(SHE(), train)
    assert detector.notes[0].startswith(
        "2 classes (first: 1, 3) have no correctly classified training images; the mean"
    )
    # class 1: mean of its images; class 3: mean of all
    scores = detector.score(Outputs(torch.eye(4)[[1, 3]], torch.tensor([[0.0, 3.0], [1.0, 1.0]])))
    np.testing.assert_allclose(scores, [3.0, 2.0])


# Hyper-parameter not checked against the model; wrong eigen-solver (ViM)
@pytest.mark.parametrize("make", [ViM, Residual])
def test_dimension_against_width(make: type[ViM]) -> None:
    train, head = small_problem(width=8)
    with pytest.raises(InvalidArgumentError, match="fewer dimensions than the 8 features, got 8; use dim <= 7"):
        fit([make(dim=8)], [train], head)
    with pytest.raises(InvalidArgumentError, match="expected dim to be at least 1, got 0"):
        make(dim=0)
    assert fitted(make(), train, head).residual.shape == (8, 4)


@pytest.mark.parametrize("make", [ViM, Residual])
def test_fewer_images_than_features_and_no_bias(make: type[ViM]) -> None:
    x = normal(20, 60)
    head = Head(normal(3, 60, seed=1))
    detector = fitted(make(dim=10), Outputs(head(x), x, torch.arange(20) % 3), head)
    assert detector.origin.abs().max() == 0
    assert not detector.residual.is_complex()
    test = normal(9, 60, seed=2)
    assert detector.score(Outputs(head(test), test)).isfinite().all()


@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_a_larger_residual_with_equal_logits_lowers_vim(offset: float) -> None:
    """Also where the largest logits are negative on average."""
    train, head = small_problem()
    head = Head(head.weight, head.offset + offset)
    x = train.require("features")
    detector = fitted(ViM(dim=3), Outputs(head(x), x, train.labels), head)
    logits = torch.zeros(3, 4).double()
    moved = detector.origin + torch.tensor([[0.0], [1.0], [5.0]]).double() * detector.residual[:, 0]
    scores = detector.score(Outputs(logits, moved))
    assert scores[0] > scores[1] > scores[2]


# Method's assumption not checked (ASH, ReAct)
@pytest.mark.parametrize("make", SHAPINGS)
@pytest.mark.parametrize(
    "row",
    [[0.0] * 100, [0.005] + [0.004] * 99, [1.0] * 100, [1.0] + [0.0] * 99, [3e37] * 100],
    ids=["zero", "nearly tied", "tied", "one", "large"],
)
def test_extreme_activations(make: type[Detector], row: list[float]) -> None:
    head = Head(0.1 * normal(5, 100, seed=1))
    x = normal(50, 100).abs()
    detector = fitted(make(), Outputs(head(x), x, torch.zeros(50, dtype=torch.int64)), head)
    test = torch.tensor([row])
    assert detector.score(Outputs(head(test), test)).isfinite().all()


@pytest.mark.parametrize("make", [lambda: ASH(percentile=99.95), lambda: SCALE(percentile=99.95)])
def test_no_overflow_of_the_exponential(make: type[Detector]) -> None:
    """s1 / s2 = 2048: the exponential of it is beyond float64."""
    head = Head(normal(5, 2048).abs())
    detector = make()
    detector.fit(head=head)
    x = torch.ones(1, 2048)
    assert detector.score(Outputs(head(x), x)).isfinite().all()


@pytest.mark.parametrize("make", [ASH, SCALE])
def test_signed_features_are_refused(make: type[Detector]) -> None:
    facts = BackboneFacts(name="vit_tiny", width=4, num_classes=3, signed_features=True)
    assert make().why_not(facts) == "requires non-negative features, but the features of vit_tiny can be negative"
    assert "non-negative" in ReAct(then=make()).why_not(BackboneFacts(signed_features=True, num_train=9))
    detector = make(percentile=50.0)
    detector.fit(head=Head(torch.eye(4)))
    x = torch.tensor([[1.0, -2.0, 0.0, 0.0]])
    with pytest.raises(RequirementError, match=re.escape("non-negative features, as after a ReLU, but got -2")):
        detector.score(Outputs(x, x))


def test_react_on_signed_features_is_noted() -> None:
    train, head = small_problem()
    assert "negative values" in fitted(ReAct(), train, head).notes[0]
    train, head = small_problem(signed=False)
    assert fitted(ReAct(), train, head).notes == ()


@pytest.mark.parametrize("variant", ["s", "p", "b"])
def test_ties_keep_the_first(variant: str) -> None:
    detector = ASH(variant, percentile=50.0, then=MaxLogit())
    detector.fit(head=Head(torch.eye(4)))
    x = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    expected = {"s": math.exp(2), "p": 1.0, "b": 2.0}[variant]
    assert float(detector.score(Outputs(x, x))) == pytest.approx(expected)
    detector = ASH(variant, percentile=50.0)
    detector.fit(head=Head(torch.eye(4)))
    expected = torch.tensor([expected, expected, 0, 0]).logsumexp(0)
    assert float(detector.score(Outputs(x, x))) == pytest.approx(float(expected))


# Epsilon in the wrong place or dtype
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_and_long_vectors(dtype: torch.dtype) -> None:
    assert unit(torch.zeros(1, 5, dtype=dtype)).abs().max() == 0
    long = torch.full((1, 2048), 40.0, dtype=dtype)
    x = torch.cat([long, torch.zeros(1, 2048, dtype=dtype)])
    out = Outputs(features=x, labels=torch.tensor([0, 1]))
    assert out.unit_features.isfinite().all()
    for detector in (Cosine(), RelativeCosine(), KNN(k=1)):
        assert fitted(detector, out).score(out).isfinite().all()


# Very large arrays; percent against fraction
def test_percentile_of_more_values_than_float32_counts() -> None:
    """16 777 217 activations: positions that float32 cannot hold, sizes that torch.quantile refuses."""
    n = 16_777_217
    values = torch.arange(n, dtype=torch.int32).float().flip(0)
    assert percentile(values, 90.0) == pytest.approx(0.9 * (n - 1), abs=1.0)


@pytest.mark.parametrize("percent", [0.0, 12.5, 90.0, 99.0, 100.0])
def test_percentile_against_numpy(percent: float) -> None:
    values = normal(37, 11).double()
    assert percentile(values, percent) == pytest.approx(np.percentile(values.numpy(), percent), rel=1e-12)


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan")])
@pytest.mark.parametrize("make", [ReAct, ASH, SCALE])
def test_percentile_out_of_range(make: type[ReAct], percent: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"percentile in \[0, 100\]"):
        make(percentile=percent)


@pytest.mark.parametrize("make", [ReAct, ASH, SCALE, DICE])
def test_a_fraction_is_no_percentile(make: type[ReAct]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"0\.9 looks like a fraction; percentiles are in percent"):
        make(percentile=0.9)
    assert make(percentile=0.0).percentile == 0
    assert VRA(low=0.5).low == 0.5


def test_at_least_one_feature_is_kept() -> None:
    detector = ASH("p", percentile=100.0, then=MaxLogit())
    detector.fit(head=Head(torch.eye(3)))
    x = torch.tensor([[1.0, 3.0, 2.0]])
    assert float(detector.score(Outputs(x, x))) == 3.0


# 0 * log 0, class never predicted (KL matching, entropy)
def test_entropy_without_uncertainty() -> None:
    assert float(Entropy().score(Outputs(torch.tensor([[200.0, 0.0, 0.0]])))) == 0
    assert Entropy().score(Outputs(torch.tensor([[0.0, -float("inf"), 0.0]]))).isfinite().all()


def test_kl_of_known_distributions() -> None:
    """p = (1, 0, 0) against q = (.98, .02, 0) is .0202."""
    q = torch.tensor([[0.98, 0.02, 0.0]]).double()
    detector = fitted(KLMatching(), Outputs(q.log()))
    assert float(detector.score(Outputs(torch.tensor([[900.0, 0.0, 0.0]]).double()))) == pytest.approx(
        -0.0202, abs=1e-4
    )


def test_class_never_predicted() -> None:
    detector = fitted(KLMatching(), Outputs(torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]])))
    assert detector.notes[0].startswith(
        "1 class (first: 2) is never predicted for training images; such classes are left"
    )
    scores = detector.score(Outputs(torch.tensor([[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]])))
    assert scores.isfinite().all()
    assert scores[1] > scores[0]


# Overflow, sign and temperature of energy
def test_energy() -> None:
    assert float(Energy().score(Outputs(torch.tensor([[12.0, 1.0, 0.0]]).half()))) == pytest.approx(12.0, abs=1e-4)
    assert float(Energy().score(Outputs(torch.tensor([[90.0, 0.0, 0.0]])))) == 90.0
    scores = Energy(temperature=1000.0).score(Outputs(torch.tensor([[5.0, 1.0, 1.0], [4.0, 3.9, 3.9]])))
    np.testing.assert_allclose(scores, [1100.9, 1102.5], atol=0.1)
    logits = normal(50, 9)
    order = Energy().score(Outputs(logits)).argsort()
    assert torch.equal(Energy().score(Outputs(logits + 64)).argsort(), order)


# Scores collide in half precision; confident images tie
def test_confident_images_do_not_tie() -> None:
    logits = torch.tensor([[30.0, 0, 0], [40.0, 0, 0]])
    for detector in (MSP(), Entropy(), GEN(), MaxLogit(), Energy()):
        low, high = detector.score(Outputs(logits))
        assert low < high, detector


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_upcast(dtype: torch.dtype) -> None:
    train, head = small_problem(signed=False, dtype=torch.float32)
    half = Outputs(train.require("logits").to(dtype), train.require("features").to(dtype), train.labels)
    detectors = [Mahalanobis(), ViM(), KNN(k=3), SHE(), FDBD(), NCI(), NNGuide(), GradNorm(), KLMatching(), ASH()]
    fit(detectors, [half], head)
    for detector in detectors:
        scores = detector.score(half)
        assert scores.dtype in (torch.float32, torch.float64)
        assert scores.isfinite().all()


# Degenerate model
def test_zero_head() -> None:
    x = normal(40, 3).abs()
    head = Head(torch.zeros(4, 3))
    train = Outputs(head(x), x, torch.arange(40) % 4)
    np.testing.assert_allclose(MSP().score(train).exp(), 0.25)
    detectors = [
        ViM(),
        Residual(),
        FDBD(),
        NCI(),
        SHE(),
        NNGuide(),
        ReAct(),
        ASH(),
        KLMatching(),
        OpenMax(),
        GradNorm(),
    ]
    fit(detectors, [train], head)
    for detector in detectors:
        assert detector.score(train).isfinite().all(), detector
    assert "6 pairs of classes have equal weights" in detectors[2].notes[0]


# Fit data or mode: two fits give identical state
@pytest.mark.parametrize("make", [Mahalanobis, ViM, ReAct, KLMatching, OpenMax, NNGuide, DDU, SHE, FDBD])
def test_two_fits_give_identical_state(make: type[Detector]) -> None:
    train, head = small_problem()
    other, _ = small_problem(seed=50)
    detector = fitted(make(), train, head)
    state = {k: v.clone() for k, v in detector.named_buffers()}
    fit([detector], [other], head)
    fit([detector], [train], head)
    for name, value in detector.named_buffers():
        assert torch.equal(value, state[name]), name


# Threshold or setting stored without what it belongs to
def test_fit_of_another_backbone_is_refused(tmp_path: Path) -> None:
    from oodlit.detectors import load, save

    train, _ = small_problem(width=8)
    detector = fitted(Mahalanobis(), train)
    save({"m": detector}, tmp_path, FitOrigin("weights-a", 8, 4, 200))
    _, origin = load(tmp_path)
    origin.check(FitOrigin("weights-a", 8, 4), source="fit")
    with pytest.raises(FingerprintError, match="weights-a in the fit, weights-b now"):
        origin.check(FitOrigin("weights-b", 8, 4), source="fit")
    with pytest.raises(FingerprintError, match="another backbone with 8 features, but this backbone has 9"):
        origin.check(FitOrigin("weights-a", 9, 4), source="fit")
