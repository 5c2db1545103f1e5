"""Defaults and presets are the settings that the papers publish."""

import pytest

from oodlit.detectors import (
    ASH,
    BATS,
    DICE,
    GEN,
    IODIN,
    KNN,
    LTS,
    NAC,
    NCI,
    ODIN,
    PRO,
    SCALE,
    VRA,
    AdaSCALE,
    CADRef,
    CoP,
    CoRP,
    Detector,
    Energy,
    MCDropout,
    NNGuide,
    OpenMax,
    OptFS,
    ReAct,
    RelativeCosine,
    WeiPer,
)

WEI_PER = {"copies": 100, "bins": 100, "images": 1000, "seed": 0, "perturb": None}
ADA_SCALE = {
    "variant": "a",
    "low": 80.0,
    "high": 85.0,
    "pixels": 5.0,
    "step": 0.5,
    "shifted": 1.0,
    "active": 5.0,
    "weight": 10.0,
}


@pytest.mark.parametrize(
    ("detector", "published"),
    [
        (GEN(), {"gamma": 0.1, "top": 100}),
        (Energy(), {"temperature": 1.0}),
        (OpenMax(), {"tail": 20, "alpha": 10}),
        (IODIN(), {"temperature": 1000.0, "epsilon": 0.0014}),
        (PRO(), {"measure": "gen", "epsilon": 1e-4, "steps": 3, "temperature": 1.0}),
        (AdaSCALE(), ADA_SCALE),
        (AdaSCALE.preset("l-imagenet-resnet50"), {**ADA_SCALE, "variant": "l"}),
        (AdaSCALE.preset("a-imagenet-regnet"), {**ADA_SCALE, "low": 60.0, "high": 90.0, "active": 30.0}),
        (AdaSCALE.preset("l-imagenet-regnet"), {**ADA_SCALE, "variant": "l", "low": 60.0}),
        (NAC.preset("imagenet-resnet50"), {"bins": 50, "enough": 10, "steepness": 3000.0, "images": 1000}),
        (MCDropout(), {"passes": 30, "measure": "entropy", "seed": 0}),
        (ODIN(), {"temperature": 1000.0, "epsilon": 0.0014, "step": "paper"}),
        (ODIN.preset("cood-program"), {"temperature": 2.0, "epsilon": 1e-5, "step": "cood"}),
        (ReAct(), {"percentile": 99.0, "threshold": None, "then": None}),
        (KNN.preset("full"), {"k": 1000, "bank_size": None}),
        (KNN.preset("1-percent"), {"k": 10, "bank_size": 12_811}),
        (RelativeCosine(), {"concepts": "means", "temperature": 1.0}),
        (DICE(), {"percentile": 70.0, "then": None}),
        (DICE.preset("cifar"), {"percentile": 90.0, "then": None}),
        (ASH(), {"variant": "s", "percentile": 90.0, "then": None}),
        (SCALE(), {"percentile": 85.0, "then": None}),
        (NNGuide(), {"k": 10, "bank_size": 12_811}),
        (NCI(), {"alpha": 1e-4}),
        (CoP(), {"variance": 0.99}),
        (CoRP.preset("imagenet-resnet50"), {"variance": 0.5, "gamma": 3.0, "size": 4096, "seed": 0}),
        (LTS(), {"percentile": 95.0}),
        (BATS(), {"spread": 1.05, "then": None}),
        (CADRef(), {"confidence": "energy"}),
        (OptFS(), {"bins": 100, "form": "projection"}),
        (
            WeiPer.preset("cifar10-resnet18"),
            WEI_PER | {"strength": 1.8, "logits_weight": 2.5, "softmax_weight": 0.1, "smooth": 4, "smooth_logits": 15},
        ),
        (
            WeiPer.preset("cifar100-resnet18"),
            WEI_PER | {"strength": 2.4, "logits_weight": 0.1, "softmax_weight": 1.0, "smooth": 4, "smooth_logits": 40},
        ),
        (VRA(), {"low": 1.0, "high": 99.0, "then": None}),
        (VRA.preset("p60-p95"), {"low": 60.0, "high": 95.0, "then": None}),
    ],
    ids=repr,
)
def test_settings_are_the_published_ones(detector: Detector, published: dict[str, object]) -> None:
    assert detector.settings == published
