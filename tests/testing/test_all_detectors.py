"""Every exported detector goes through the conformance kit."""

from functools import partial

from oodlit.detectors import (
    ASH,
    CSP,
    DDU,
    DICE,
    GLMCM,
    KNN,
    MSP,
    NAC,
    ODIN,
    RAS,
    SCALE,
    SIRC,
    VRA,
    ActSub,
    CADRef,
    Combined,
    CoRP,
    Cosine,
    Entropy,
    LaRD,
    Mahalanobis,
    MaxLogit,
    MCDropout,
    NegLabel,
    OpenMax,
    RankFeat,
    ReAct,
    RelativeCosine,
    Residual,
    WeiPer,
    detectors,
    presets,
)
from oodlit.testing import parametrize_with_checks
from tests.detectors.support import NEGATIVE_WORDS

SMALL = {
    "knn": [KNN, partial(KNN, k=5)],  # 1000 neighbours, as in the preset, are more than the problem has
    "neg_label": [partial(NegLabel, **NEGATIVE_WORDS)],
    "csp": [partial(CSP, **NEGATIVE_WORDS)],
    "open_max": [partial(OpenMax, tail=5)],  # 20 outermost of 25 images per class are most of the class
}
"""Factories of the detectors whose default settings do not fit the kit's 150 training images and 6 classes."""

VARIANTS = [
    lambda: Combined([MSP(), ReAct(), Residual()], size=100),
    lambda: SIRC(Entropy(), KNN(k=5)),
    partial(KNN, k=5, bank_size=100),
    partial(WeiPer, copies=10, perturb="logits"),
    partial(Mahalanobis, power=0.5),
    partial(ActSub, percentile=50.0, power=0.5, dim=3, k=3, bank_size=100),
    lambda: RAS(then=MSP()),
    partial(CADRef, confidence="max_logit"),
    partial(CADRef, confidence="msp"),
    partial(NAC, bins=20, steepness=1.0),
    partial(CoRP, variance=0.8, gamma=1.0, size=24),
    partial(ASH, variant="p"),
    partial(ASH, variant="b"),
    partial(DDU, covariance="full"),
    partial(DDU, covariance="diagonal"),
    partial(Cosine, concepts="head"),
    partial(RelativeCosine, concepts="head"),
    partial(LaRD, density="knn", k=5),
    partial(LaRD, density="gmm", components=6),
    partial(LaRD, dim=16),
    partial(LaRD, layer="pool"),
    partial(GLMCM, weight=0.5, temperature=0.1),
    partial(NegLabel, **NEGATIVE_WORDS, share=0.3, temperature=1.0),
    partial(MCDropout, measure="max"),
    partial(ODIN, epsilon=0.0),
    lambda: ReAct(then=MSP()),
    lambda: ReAct(then=DICE()),
    lambda: DICE(then=ReAct()),
    lambda: SCALE(then=MaxLogit()),
    lambda: ASH(then=MaxLogit()),
    lambda: VRA(then=MSP()),
    lambda: RankFeat(then=MSP()),
]
DEFAULTS = [factory for key, kind in detectors().items() for factory in SMALL.get(key, [kind])]
LARGE = {"corp"}
"""Detectors whose presets decompose matrices of thousands of rows; their variants are above."""
SCALED = {"nac"}
"""Detectors whose presets belong to the scale of one network's features: in this one all states are 0 or 1."""
PRESETS = [
    partial(detectors()[key].preset, name)
    for key, named in presets().items()
    for name in named
    if key not in SMALL.keys() | LARGE | SCALED
]


def unique(factories):
    """One factory for every way to write a detector: presets repeat defaults."""
    return list({repr(factory()): factory for factory in factories}.values())


SWEPT = unique([*DEFAULTS, *VARIANTS, *PRESETS])


def test_sweep_is_complete():
    swept = {type(factory()) for factory in SWEPT}
    assert swept == set(detectors().values())
    assert len(detectors()) >= 54
    assert len(SWEPT) >= len(detectors()) + len(VARIANTS)


@parametrize_with_checks(SWEPT, examples=5)
def test_conformance(factory, check):
    check(factory)
