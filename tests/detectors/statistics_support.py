"""Every statistic, a training set for all of them, and what detectors read of each."""

from collections.abc import Callable

import numpy as np
import torch

from oodlit.detectors.statistics import (
    ClassCovariances,
    ClassMoments,
    ClassProbabilities,
    ClassVariances,
    CorrectMeans,
    FeatureBank,
    FeatureMean,
    HiddenSample,
    PredictedMeans,
    ScalarSample,
    Statistic,
    TrainSample,
    UnitMoments,
    fourier_moments,
)
from oodlit.outputs import Outputs

from .support import cut, normal


def first_logit(outputs: Outputs) -> torch.Tensor:
    return outputs.require("logits")[:, 0]


KINDS: dict[str, Callable[[], Statistic]] = {
    "ClassMoments": ClassMoments,
    "UnitMoments": UnitMoments,
    "FourierMoments": fourier_moments(8, 1.0, 0),
    "ClassProbabilities": ClassProbabilities,
    "FeatureMean": FeatureMean,
    "CorrectMeans": CorrectMeans,
    "PredictedMeans": PredictedMeans,
    "ClassCovariances": ClassCovariances,
    "ClassVariances": ClassVariances,
    "TrainSample": lambda: TrainSample(rows=40),
    "FeatureBank": FeatureBank,
    "ScalarSample": lambda: ScalarSample([first_logit], rows=40),
    "HiddenSample": lambda: HiddenSample(["block"], rows=40),
}


def train(n: int = 150, *, width: int = 5, classes: int = 6, mean: float = 1000.0, sd: float = 0.01) -> Outputs:
    """Labels have gaps: classes 0, 2 and 5 only."""
    features = mean + sd * normal(n, width).double()
    labels = torch.tensor([0, 2, 5])[torch.arange(n) % 3]
    logits = 5 * normal(n, classes, seed=1).double()
    hidden = {"block": normal(n, 3, 2, 2, seed=2)}
    return Outputs(logits, features, labels, keys=[f"train/{i}" for i in range(n)], hidden=hidden)


def facts_of(statistic: Statistic) -> dict[str, torch.Tensor]:
    """What detectors read of a statistic."""
    names = {
        "ClassMoments": (
            "counts",
            "class_ids",
            "class_means",
            "mean",
            "total_covariance",
            "within_covariance",
            "variances",
        ),
        "ClassProbabilities": ("counts", "means"),
        "FeatureMean": ("mean",),
        "PredictedMeans": ("counts", "means", "mean"),
        "CorrectMeans": ("right_counts", "means", "class_means", "mean"),
        "ClassCovariances": ("class_ids", "counts", "class_means", "covariances"),
        "ClassVariances": ("class_ids", "counts", "class_means", "variances"),
    }
    names["UnitMoments"] = names["FourierMoments"] = names["ClassMoments"]
    kind = type(statistic).__name__
    if kind in names:
        found = {n: getattr(statistic, n) for n in names[kind]}
    else:
        columns = {"TrainSample": ("hash", "logits", "features", "labels", "predictions"), "FeatureBank": ("features",)}
        columns["ScalarSample"] = ("hash", "scalar 0")
        found = {n: statistic.column(n) for n in columns.get(kind, ("hash", "block", "labels"))}
    return found | {"num_samples": torch.tensor(statistic.num_samples)}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], variance: float = 1e-4) -> None:
    for name, value in expected.items():
        # Variances are 1e-4 around a mean of 1000: the error is measured by them.
        atol = 1e-10 * variance if "varianc" in name or "covariance" in name else 0.0
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=atol, err_msg=name)


def made(kind: str, outputs: Outputs, size: int, order: torch.Tensor | None = None) -> Statistic:
    statistic = KINDS[kind]()
    for batch in cut(outputs, size, order):
        statistic.update(batch)
    return statistic
