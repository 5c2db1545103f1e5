"""Devices without float64: what is computed in it is computed on the CPU."""

import pytest
import torch

from oodlit.base import checks
from oodlit.base.checks import where_float64_is
from oodlit.detectors import ODIN, AdaSCALE, Mahalanobis, MCDropout, RankFeat, ViM, fit
from oodlit.testing.problems import separated_problem


@pytest.mark.parametrize("kind", [Mahalanobis, ViM, ODIN, AdaSCALE, MCDropout, RankFeat])
def test_outputs_are_moved_to_the_cpu_once_and_scores_are_equal(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device without float64."""
    data = separated_problem()
    expected = kind()
    fit([expected], [data.train], data.head)
    scores = expected.score(data.tests)
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", frozenset({"cpu"}))
    outputs = data.tests
    moved = where_float64_is(outputs)
    assert moved is not outputs
    assert where_float64_is(outputs) is moved
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", frozenset({"mps"}))
    assert torch.equal(expected.score(moved), scores)
