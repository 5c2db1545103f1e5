"""Fit detectors on problems, and compare scores."""

from collections.abc import Iterable

import torch

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors import Detector, fit
from oodlit.testing.clauses import Factory
from oodlit.testing.problems import Problem

RTOL = 1e-5
"""Relative tolerance: scores are at least float32, and other batch sizes may sum in another order."""


def fit_on(detector: Detector, batches: Iterable[Outputs], head: Head | None) -> Detector:
    """Fit the detector and return it; it only gets the head if it declares it in `needs`."""
    fit([detector], batches, head if "head" in detector.required_needs else None)
    return detector


def fitted(factory: Factory, problem: Problem) -> Detector:
    """A new detector, fitted on the training set of a problem in three batches."""
    train = problem.train
    return fit_on(factory(), [train.select(rows) for rows in torch.arange(len(train)).chunk(3)], problem.head)


def assert_same_scores(found: Scores, expected: Scores, *, what: str, rtol: float = RTOL) -> None:
    """Check that scores are equal up to `rtol` of the largest one, with infinities and NaN at the same positions."""
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: expected scores of shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    finite = expected.isfinite()
    scale = float(expected[finite].abs().max()) if finite.any() else 0.0
    close = torch.isclose(found, expected, rtol=0.0, atol=rtol * scale, equal_nan=True)
    if not close.all():
        row = int((~close).nonzero()[0])
        raise AssertionError(
            f"{what}: {int((~close).sum())} of {len(close)} scores changed (first: position {row}, from"
            f" {float(expected[row]):.8g} to {float(found[row]):.8g})"
        )


def assert_same_ranking(found: Scores, expected: Scores, *, what: str, rtol: float = 1e-4) -> None:
    """Check that no two images swap their order, unless their scores differ by less than `rtol` of the range."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    if not (found.isfinite().all() and expected.isfinite().all()):
        raise AssertionError(f"{what}: some scores are not finite")
    before = expected[:, None] - expected
    swapped = (before > rtol * (expected.max() - expected.min())) & (found[:, None] - found < 0)
    if swapped.any():
        i, j = swapped.nonzero()[0].tolist()
        raise AssertionError(
            f"{what}: images {i} and {j} changed their order: {float(expected[i]):.8g} > {float(expected[j]):.8g}"
            f" became {float(found[i]):.8g} < {float(found[j]):.8g}"
        )
