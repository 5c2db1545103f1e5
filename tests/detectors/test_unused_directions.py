"""Relative Mahalanobis distances where training images do not use all directions of the feature space."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from oodlit.detectors import Detector, Mahalanobis, RelativeMahalanobis, RelativeMahalanobisPlusPlus, fit, load, save
from oodlit.outputs import Outputs

from .formulas import Problem, relative_mahalanobis
from .support import normal

LABELS = torch.arange(120) % 4
X = normal(120, 6, seed=1).double() + LABELS[:, None] * normal(6, seed=2).double()
PROBES = 2 * normal(9, 6, seed=3).double()


def scores(features: Tensor, probes: Tensor, detector: Detector | None = None) -> tuple[np.ndarray, Detector]:
    detector = detector or RelativeMahalanobis()
    fit([detector], [Outputs(features=features, labels=LABELS)])
    return detector.score(Outputs(features=probes)).numpy(), detector


def with_column(features: Tensor, column: Tensor | float) -> Tensor:
    return torch.cat([features, torch.as_tensor(column).double().expand(len(features))[:, None]], dim=1)


@pytest.mark.parametrize("activation", [1e-4, 1.0, 1e6])
def test_a_dead_feature_does_not_decide(activation: float) -> None:
    """A feature that is zero in training and active in an image: the score is that of the other features."""
    expected, without = scores(X, PROBES)
    found, detector = scores(with_column(X, 0.0), with_column(PROBES, activation))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert without.notes == ()
    assert detector.notes == ("the training features do not vary in 1 direction; this does not affect scores",)
    cost, _ = scores(with_column(X, 0.0), with_column(PROBES, activation), Mahalanobis())
    assert (cost < scores(X, PROBES, Mahalanobis())[0]).all()


def test_features_whose_sum_is_always_the_same() -> None:
    """The unused direction is not one of the axes, and rounding to float32 leaves a little scatter along it."""
    rotation = torch.linalg.qr(normal(7, 7, seed=5).double()).Q
    expected, _ = scores(X, PROBES)
    rotated = (with_column(X, 3.0) @ rotation).float()
    found, detector = scores(rotated, (with_column(PROBES, 3.1) @ rotation).float())
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert "do not vary in 1 direction;" in detector.notes[0]


def test_unit_features() -> None:
    expected, _ = scores(X, PROBES, RelativeMahalanobisPlusPlus())
    found, _ = scores(with_column(X, 0.0), with_column(PROBES, 1e-6), RelativeMahalanobisPlusPlus())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_feature_that_is_constant_within_the_classes_counts() -> None:
    """It differs between the class means, so training uses it: an image far from all of them scores lower."""
    of_class = torch.tensor([1.0, 2.0, 4.0, 8.0]).double()
    train = with_column(X, of_class[LABELS])
    near, detector = scores(train, with_column(X[:4], of_class[LABELS[:4]]))
    far, _ = scores(train, with_column(X[:4], 100.0))
    assert detector.notes == ()
    assert (far < near).all()


def test_a_fit_that_was_saved_with_two_whitenings(tmp_path: Path) -> None:
    """Fits saved by earlier versions keep their scores."""
    expected, new = scores(X, PROBES)
    old = Mahalanobis()
    fit([old], [Outputs(features=X, labels=LABELS)])
    detector = RelativeMahalanobis()
    fit([detector], [Outputs(features=X, labels=LABELS)])
    factor = torch.linalg.cholesky(torch.linalg.inv((X - X.mean(dim=0)).T @ (X - X.mean(dim=0)) / len(X)))
    detector.keep(**dict(old.named_buffers()), whiten_total=factor)
    del detector.total_variances
    save({"relative": detector}, tmp_path)
    loaded = load(tmp_path)[0]["relative"]
    np.testing.assert_allclose(loaded.score(Outputs(features=PROBES)), expected, rtol=1e-9)
    fit([loaded], [Outputs(features=X, labels=LABELS)])
    assert torch.equal(loaded.score(Outputs(features=PROBES)), new.score(Outputs(features=PROBES)))


@pytest.mark.parametrize("classes", [2, 4, 60])
def test_the_score_equals_the_difference_of_two_distances(classes: int) -> None:
    """With fewer and with more classes than features; plain loops invert both covariances."""
    labels = np.arange(120) % classes
    head = np.zeros((classes, 6))
    none = np.zeros((0, classes))
    problem = Problem(X.numpy(), labels, PROBES.numpy(), head, np.zeros(classes), none, none)
    detector = RelativeMahalanobis()
    fit([detector], [Outputs(features=X, labels=torch.from_numpy(labels))])
    np.testing.assert_allclose(
        detector.score(Outputs(features=PROBES)), relative_mahalanobis(problem), rtol=1e-10, atol=1e-10
    )
