"""What several detectors need of a batch is computed once, whatever their number."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oodlit.detectors import (
    DDU,
    GEN,
    MSP,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    RelativeCosine,
    RelativeMahalanobis,
    Residual,
    ViM,
    fit,
)
from oodlit.outputs import Outputs

from .support import small_problem


class Calls(TorchDispatchMode):
    """Counts operations on tensors that are, or hold the memory of, one of those that are watched."""

    def __init__(self, watched: torch.Tensor) -> None:
        super().__init__()
        self.watched = watched.untyped_storage().data_ptr()
        self.on_watched: Counter[str] = Counter()
        self.everywhere: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        self.everywhere[name] += 1
        self.on_watched[name] += any(t.untyped_storage().data_ptr() == self.watched for t in tensors)
        return func(*args, **(kwargs or {}))


def calls(detectors: list[Detector], field: str) -> Calls:
    """Operations while one batch is scored by all detectors."""
    train, head = small_problem()
    fit(detectors, [train], head)
    outputs = Outputs(train.logits, train.features)
    with Calls(outputs.require(field)) as counted:
        for detector in detectors:
            detector.score(outputs)
    return counted


def test_softmax_and_the_largest_logits_once() -> None:
    detectors = [MSP(), MaxLogit(), Energy(), Entropy(), GEN(), KLMatching(), GradNorm(), ViM(), NNGuide(k=2)]
    counted = calls(detectors, "logits")
    assert counted.on_watched["_softmax"] == 1
    assert counted.on_watched["amax"] == 1
    assert counted.on_watched["argmax"] == 1
    assert counted.everywhere["_log_softmax"] == counted.everywhere["logsumexp"] == 0
    assert counted.everywhere["exp"] <= 2  # of logarithms in GEN


def test_looks_for_values_that_are_not_finite_once() -> None:
    many = calls([Residual(), Residual(dim=2), ViM(), ViM(dim=2)], "features")
    one = calls([Residual()], "features")
    assert many.on_watched["sum"] == one.on_watched["sum"] == 1


@pytest.mark.parametrize(
    ("one", "several"),
    [
        (lambda: [Mahalanobis()], lambda: [Mahalanobis(), RelativeMahalanobis()]),
        (lambda: [Mahalanobis()], lambda: [Mahalanobis(), DDU("tied")]),
        (lambda: [Residual()], lambda: [Residual(), ViM()]),
        (lambda: [Cosine()], lambda: [Cosine(), RelativeCosine()]),
    ],
    ids=["class-distances", "tied-covariance", "residual", "cosines"],
)
def test_large_products_once(one, several) -> None:
    """Relative Mahalanobis adds one product, by the total covariance; the others add none."""

    def products(counted: Calls) -> int:
        return sum(counted.everywhere[name] for name in ("mm", "addmm", "bmm"))

    added = products(calls(several(), "features")) - products(calls(one(), "features"))
    assert added == (1 if any(isinstance(d, RelativeMahalanobis) for d in several()) else 0)


def test_unit_features_once() -> None:
    assert calls([NNGuide(k=2), NNGuide(k=3), NNGuide(k=4)], "features").on_watched["div"] == 1


def test_decompositions_of_a_fit_once() -> None:
    train, head = small_problem()
    detectors = [Mahalanobis(), RelativeMahalanobis(), DDU("tied"), ViM(), ViM(dim=2), Residual()]
    with Calls(train.require("features")) as counted:
        fit(detectors, [train], head)
    assert counted.everywhere["linalg_cholesky_ex"] <= 2  # within classes, total
    assert counted.everywhere["_linalg_eigh"] <= 1 + 2  # of ViM, and where a Cholesky factor is not exact enough
    assert counted.everywhere["linalg_lstsq"] == 1
