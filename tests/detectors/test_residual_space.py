"""The origin that ViM and Residual share, against the pseudo-inverse of NumPy."""

import numpy as np
import pytest
import torch

from oodlit.detectors import Residual, fit
from oodlit.outputs import Head

from .support import normal, small_problem


@pytest.mark.parametrize("classes", [6, 40])
@pytest.mark.parametrize("kind", ["equal rows", "zero rows", "zero", "rank one"])
def test_origin_of_a_head_without_full_rank(kind: str, classes: int) -> None:
    """U = -W^+ b, many times: memory that nobody wrote may happen to hold zeros."""
    train, _ = small_problem(n=60, width=16)
    weight = normal(classes, 16, seed=4)
    weight = {
        "equal rows": weight[torch.arange(classes) % 3],
        "zero rows": weight * (torch.arange(classes) % 2)[:, None],
        "zero": torch.zeros_like(weight),
        "rank one": normal(classes, 1, seed=5).double() @ normal(1, 16, seed=6).double(),
    }[kind].double()
    bias = normal(classes, 1, seed=7)[:, 0].double()
    expected = -np.linalg.pinv(weight.numpy(), rcond=1e-12) @ bias.numpy()
    for _ in range(20):
        detector = Residual(dim=3)
        fit([detector], [train], Head(weight, bias))
        np.testing.assert_allclose(detector.origin, expected, rtol=1e-8, atol=1e-8)
