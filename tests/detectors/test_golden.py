"""Scores equal published ones, streamed in any cut and order."""

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from oodlit.detectors import (
    ASH,
    DICE,
    FDBD,
    GEN,
    KNN,
    MSP,
    ORA,
    RAS,
    SCALE,
    SHE,
    ActSub,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    Residual,
    ViM,
    fit,
)

from .support import cut, golden_head, golden_outputs, golden_scores, permutation

GOLDENS: dict[str, Callable[[], Detector]] = {
    "msp": MSP,
    "max_logit": MaxLogit,
    "energy": Energy,
    "mahalanobis": Mahalanobis,
    "relative_mahalanobis": RelativeMahalanobis,
    "vim": ViM,
    "knn": lambda: KNN(k=1000),
    "entropy": Entropy,
    "gen": GEN,
    "kl_matching": KLMatching,
    "residual": Residual,
    "react": ReAct,
    "cosine": Cosine,
    "relative_cosine": RelativeCosine,
    "grad_norm": GradNorm,
    "dice": DICE,
    "ash_p": lambda: ASH(variant="p"),
    "ash_b": lambda: ASH(variant="b"),
    "ash_s": ASH,
    "scale": SCALE,
    "she": SHE,
    "fdbd": FDBD,
    "nnguide": NNGuide,
    "ras": RAS,
    "ora": ORA,
    "act_sub": lambda: ActSub(bank_size=12_000),
}
TO_GOLDEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "msp": np.exp,  # the score is log p
    "relative_cosine": np.exp,
    "knn": lambda s: -(s**2),  # the golden is the squared distance
}


@pytest.fixture(scope="module")
def fitted() -> dict[str, Detector]:
    detectors = {name: make() for name, make in GOLDENS.items()}
    fit(list(detectors.values()), cut(golden_outputs("train"), 4096), golden_head())
    return detectors


@pytest.mark.parametrize("part", ["id", "ood"])
@pytest.mark.parametrize("name", GOLDENS)
def test_golden(fitted: dict[str, Detector], name: str, part: str) -> None:
    scores = TO_GOLDEN.get(name, lambda s: s)(fitted[name].score(golden_outputs(part)).double().numpy())
    golden = golden_scores()[f"{name}/{part}"]
    rtol, atol = 1e-4 if name == "knn" else 1e-5, 0.0
    if name == "relative_mahalanobis":  # a difference of two distances: its error is measured by their size
        atol = 1e-6 * np.abs(golden_scores()[f"mahalanobis/{part}"]).max()
    if name in ("entropy", "kl_matching"):  # the golden's z_max - LSE has an absolute error of this size
        atol = 1e-14
    if name == "gen":  # the golden's 1 - p has too few digits where p is within 1e-11 of 1
        sure = golden_scores()[f"msp/{part}"] > 1 - 1e-11
        assert sure.sum() < 150
        scores, golden = scores[~sure], golden[~sure]
    np.testing.assert_allclose(scores, golden, rtol=rtol, atol=atol)


@pytest.mark.parametrize("part", ["id", "ood"])
def test_confident_images_against_sixty_digits(part: str) -> None:
    """Where the goldens themselves lose digits, the scores keep them."""
    outputs = golden_outputs(part)
    rows = torch.from_numpy(golden_scores()[f"msp/{part}"]).argsort(descending=True)[[0, 5, 20, 60]]
    chosen = outputs.select(rows)
    entropies, gens = Entropy().score(chosen), GEN().score(chosen)
    with localcontext() as context:
        context.prec = 60
        for i in range(len(rows)):
            z = [Decimal(v) for v in chosen.require("logits")[i].tolist()]
            exps = [(v - max(z)).exp() for v in z]
            total = sum(exps)
            p = sorted((e / total for e in exps), reverse=True)
            entropy = sum(v * v.ln() for v in p)
            gen = -sum((v * (1 - v)) ** Decimal("0.1") for v in p[:100])
            assert float(entropies[i]) == pytest.approx(float(entropy), rel=1e-12)
            assert float(gens[i]) == pytest.approx(float(gen), rel=1e-12)


def test_every_golden_is_compared() -> None:
    assert {key.split("/")[0] for key in golden_scores()} == set(GOLDENS)
    assert len(GOLDENS) == 26


@pytest.mark.parametrize("size", [7, 256, 12_000])
def test_cut_and_order_of_the_training_set_do_not_matter(fitted: dict[str, Detector], size: int) -> None:
    others = {name: make() for name, make in GOLDENS.items()}
    train = golden_outputs("train")
    fit(list(others.values()), cut(train, size, permutation(len(train), seed=size)), golden_head())
    for name, detector in others.items():
        for part in ("id", "ood"):
            outputs = golden_outputs(part)
            # KL matching is a difference of two sums: its error is measured by their size, that of the entropy.
            size = fitted["entropy"].score(outputs).abs() if name == "kl_matching" else torch.tensor(0.0)
            scores, expected = detector.score(outputs), fitted[name].score(outputs)
            error = (scores - expected).abs() / torch.maximum(expected.abs(), size)
            assert error.max() < 1e-10, name
    assert torch.get_default_dtype() == torch.float32
