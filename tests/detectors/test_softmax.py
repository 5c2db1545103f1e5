"""The one softmax behind the scores of logits, against float64 references."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from oodlit.detectors.formulas.softmax import log_max_probability, logsumexp_, negative_entropy, odds_against
from oodlit.outputs import Outputs


def logits_of(rows: int, classes: int, scale: float, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    rows=st.integers(0, 40),
    classes=st.sampled_from([1, 2, 3, 7, 16, 17, 33, 100, 1000, 1025, 4097]),
    scale=st.sampled_from([1e-3, 1.0, 10.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_written_over_or_not_it_is_the_same(
    dtype: torch.dtype, rows: int, classes: int, scale: float, seed: int
) -> None:
    logits = logits_of(rows, classes, scale, seed, dtype)
    kept = Outputs(logits.clone()).logsumexp
    assert torch.equal(logsumexp_(logits.clone()), kept)
    exact = logsumexp(logits.double().numpy(), axis=1) if rows else np.zeros(0)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(kept, exact, rtol=8 * eps, atol=8 * eps * max(1.0, scale))


@pytest.mark.parametrize("gap", [0.0, 1e-3, 1.0, 20.0, 40.0, 80.0])
@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confident_images_keep_their_digits(gap: float, classes: int, dtype: torch.dtype) -> None:
    """Log p_max = -log(1 + odds) with odds far below the spacing of numbers at 1."""
    logits = torch.zeros(3, classes, dtype=dtype)
    logits[:, 1] = gap
    odds = (classes - 1) * np.exp(-gap)
    outputs = Outputs(logits)
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(odds_against(outputs), np.full(3, odds), rtol=rtol)
    np.testing.assert_allclose(log_max_probability(logits), np.full(3, -np.log1p(odds)), rtol=rtol)
    entropy = -np.log1p(odds) - odds / (1 + odds) * gap
    np.testing.assert_allclose(negative_entropy(outputs), np.full(3, entropy), rtol=rtol, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_classes_and_the_ends_of_the_range(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    rows = [[0.0, -np.inf, 0.0], [5.0, -np.inf, -np.inf], [largest, -largest, 0.0], [-largest, -largest, -largest]]
    outputs = Outputs(torch.tensor(rows, dtype=dtype))
    np.testing.assert_allclose(outputs.logsumexp, [np.log(2), 5.0, largest, -largest], rtol=1e-6)
    np.testing.assert_allclose(negative_entropy(outputs), [-np.log(2), 0.0, 0.0, -np.log(3)], rtol=1e-6)
