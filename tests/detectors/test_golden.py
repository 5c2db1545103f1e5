"""Scores equal published ones, streamed in any cut and order."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from oodlit.detectors import KNN, MSP, Detector, Energy, Mahalanobis, MaxLogit, RelativeMahalanobis, ViM, fit

from .support import cut, golden_head, golden_outputs, golden_scores, permutation, relative_error

GOLDENS: dict[str, Callable[[], Detector]] = {
    "msp": MSP,
    "max_logit": MaxLogit,
    "energy": Energy,
    "mahalanobis": Mahalanobis,
    "relative_mahalanobis": RelativeMahalanobis,
    "vim": ViM,
    "knn": KNN,
}
TO_GOLDEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "msp": np.exp,  # the score is log p
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
    scores = fitted[name].score(golden_outputs(part)).double().numpy()
    golden = golden_scores()[f"{name}/{part}"]
    # Relative Mahalanobis is a difference of two distances: its error is measured by their size.
    atol = 1e-6 * np.abs(golden_scores()[f"mahalanobis/{part}"]).max() if name == "relative_mahalanobis" else 0
    np.testing.assert_allclose(
        TO_GOLDEN.get(name, lambda s: s)(scores), golden, rtol=1e-4 if name == "knn" else 1e-5, atol=atol
    )


@pytest.mark.parametrize("size", [7, 256, 12_000])
def test_cut_and_order_of_the_training_set_do_not_matter(fitted: dict[str, Detector], size: int) -> None:
    others = {name: make() for name, make in GOLDENS.items()}
    train = golden_outputs("train")
    fit(list(others.values()), cut(train, size, permutation(len(train), seed=size)), golden_head())
    for name, detector in others.items():
        for part in ("id", "ood"):
            expected = fitted[name].score(golden_outputs(part))
            assert relative_error(detector.score(golden_outputs(part)), expected) < 1e-10, name
    assert torch.get_default_dtype() == torch.float32
