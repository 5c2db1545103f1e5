"""Scores of a CUDA device equal those of the CPU, wherever the fit was made."""

from collections.abc import Callable

import pytest
import torch

from oodlit.detectors import (
    ASH,
    BATS,
    DDU,
    DICE,
    FDBD,
    GEN,
    KNN,
    LTS,
    MSP,
    NAC,
    NCI,
    NECO,
    ORA,
    RAS,
    SCALE,
    SHE,
    SIRC,
    VRA,
    ActSub,
    CADRef,
    CARef,
    Combined,
    CoP,
    CoRP,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MahalanobisPlusPlus,
    MaxLogit,
    NNGuide,
    OpenMax,
    OptFS,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    RelativeMahalanobisPlusPlus,
    Residual,
    TemperatureScaledMSP,
    ViM,
    WeiPer,
    fit,
)

from .support import cut, small_problem

MAKES: list[Callable[[], Detector]] = [
    *(MSP, MaxLogit, Energy, Entropy, GEN, KLMatching, TemperatureScaledMSP, Mahalanobis, RelativeMahalanobis, ViM),
    *(Residual, ReAct, Cosine, RelativeCosine, GradNorm, DICE, ASH, SCALE, SHE, FDBD, NCI, VRA, DDU),
    *(MahalanobisPlusPlus, RelativeMahalanobisPlusPlus, CoP, CoRP, LTS, BATS, NECO, CARef, CADRef, OptFS, WeiPer),
    *(NAC, RAS, ORA, lambda: Mahalanobis(power=0.5), lambda: ActSub(k=3), SIRC),
    *(lambda: SIRC(Entropy(), Residual()), lambda: Combined([Mahalanobis(), Energy(), KNN(k=5)])),
    *(lambda: KNN(k=5), lambda: NNGuide(k=5), lambda: OpenMax(tail=5), lambda: DDU("full"), lambda: DDU("diagonal")),
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", MAKES, ids=lambda make: repr(make()))
def test_devices_agree(make: Callable[[], Detector]) -> None:
    train, head = small_problem(n=300, width=16, signed=False, dtype=torch.float32)
    test, _ = small_problem(n=50, width=16, seed=9, signed=False, dtype=torch.float32)
    on_cpu, on_gpu = make(), make()
    fit([on_cpu], cut(train, 64), head)
    fit([on_gpu], (batch.to("cuda") for batch in cut(train, 64)), head.to("cuda"))
    expected = on_cpu.score(test)
    for detector in (on_gpu, on_cpu):  # fitted there; fitted here and moved by what it scores
        scores = detector.score(test.to("cuda"))
        assert scores.device.type == "cuda"
        torch.testing.assert_close(scores.cpu().double(), expected.double(), rtol=1e-4, atol=1e-5)
