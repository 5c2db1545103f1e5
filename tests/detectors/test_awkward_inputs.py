"""Inputs that are easy to get wrong for detectors that divide by norms, levels, spreads or counts."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from oodlit.detectors import (
    BATS,
    LTS,
    NAC,
    NECO,
    ORA,
    RAS,
    ActSub,
    CADRef,
    CARef,
    CoP,
    CoRP,
    Detector,
    Mahalanobis,
    MahalanobisPlusPlus,
    OptFS,
    RelativeMahalanobisPlusPlus,
    WeiPer,
    fit,
)
from oodlit.outputs import Head, Outputs

from .formulas import problem
from .support import normal

MAKES: dict[str, Callable[[], Detector]] = {
    repr(make()): make
    for make in (
        MahalanobisPlusPlus,
        RelativeMahalanobisPlusPlus,
        partial(Mahalanobis, power=0.5),
        RAS,
        ORA,
        partial(ActSub, k=1),
        partial(CoP, variance=0.9),
        CoRP,
        LTS,
        BATS,
        NECO,
        OptFS,
        partial(OptFS, form="energy"),
        WeiPer,
        partial(NAC, bins=20),
        partial(NAC, bins=20, steepness=1.0),
        CARef,
        CADRef,
        partial(CADRef, confidence="max_logit"),
        partial(CADRef, confidence="msp"),
    )
}


def clusters(kind: str) -> tuple[Outputs, Head]:
    """Training outputs of a head whose classes have separate features, with one fault."""
    n = 1 if kind == "one image" else 120
    labels = torch.arange(n) % 4
    x = (3 * torch.eye(4).repeat(1, 3)[labels] + 0.5 * normal(n, 12)).abs()
    head = Head(torch.eye(4).repeat(1, 3), torch.zeros(4))
    if kind == "zero rows":
        x[::10] = 0
    elif kind == "all zero":
        x[:] = 0
    elif kind == "constant dimension":
        x[:, 2] = 1.25
    elif kind == "ties":
        x = x.round()
    elif kind == "half precision":
        x = x.half()
    elif kind == "class never predicted":
        head = Head(head.weight, torch.tensor([0.0, 0.0, 0.0, -1e4]))
    elif kind == "negative logits":
        head = Head(head.weight, torch.full((4,), -60.0))
    elif kind == "masked class":
        head = Head(head.weight, torch.tensor([0.0, 0.0, 0.0, -float("inf")]))
    elif kind == "signed":
        x = x - 1
    return Outputs(head(x.float()).to(x.dtype), x, labels, keys=[f"t/{i}" for i in range(n)]), head


KINDS = [
    "plain",
    "one image",
    "zero rows",
    "all zero",
    "constant dimension",
    "ties",
    "half precision",
    "class never predicted",
    "negative logits",
    "masked class",
    "signed",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_scores_are_finite_and_the_same_alone(make: Callable[[], Detector], kind: str) -> None:
    """Zeros, tiny, huge and unknown features; in a batch of many and in one of a single image."""
    train, head = clusters(kind)
    detector = make()
    fit([detector], [train], head)
    x = torch.cat([train.require("features")[:8].float(), torch.zeros(2, 12), 1e-30 * torch.ones(1, 12)])
    x = torch.cat([x, 1e4 * x[:3], torch.ones(1, 12)])
    tests = Outputs(head(x), x)
    scores = detector.score(tests)
    assert scores.isfinite().all(), scores
    alone = torch.cat([detector.score(tests.select(slice(i, i + 1))) for i in range(len(tests))])
    np.testing.assert_allclose(alone, scores, rtol=1e-5, atol=1e-6 * float(scores.abs().max()))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"one image", "all zero"}])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_higher_is_in_distribution_whatever_is_wrong_with_the_training_set(
    make: Callable[[], Detector], kind: str
) -> None:
    """The other half of a training set against features that mix all classes alike."""
    if (kind, repr(make())) in {("zero rows", "CoP(variance=0.9)")}:
        pytest.skip("zeros among unit rows take a separate axis, and most of the variance")
    if (kind, repr(make())) in {("ties", "WeiPer()")}:
        pytest.skip("the histogram of whole numbers has gaps, which the smoothed one of an image has not")
    if isinstance(make(), LTS | ActSub):
        pytest.skip("one of 12 features does not measure how peaked they are")
    train, head = clusters(kind)
    detector = make()
    fit([detector], [train.select(slice(0, 80))], head)
    rows = train.select(slice(80, 120))
    known = rows.select(rows.require("features").float().abs().sum(dim=1) > 0)
    known = known.select(known.require("labels") != 3) if "class" in kind else known
    x = 0.75 + 0.5 * normal(40, 12, seed=5).abs() - float(kind == "signed")
    unknown = replace(known, features=x, logits=head(x), labels=None, keys=None)
    inside, outside = detector.score(known), detector.score(unknown)
    auroc = float((inside[:, None] > outside).double().mean())
    assert auroc > 0.9, auroc


@pytest.mark.parametrize("make", [MahalanobisPlusPlus, RelativeMahalanobisPlusPlus, CoP, CoRP])
@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e18])
def test_the_norm_of_an_image_does_not_count(make: Callable[[], Detector], scale: float) -> None:
    given = problem(seed=3)
    detector = make()
    np.testing.assert_allclose(
        replace(given, q=scale * given.q).scores(detector), given.scores(make()), rtol=1e-9, atol=1e-9
    )
