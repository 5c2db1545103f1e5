"""P-values of scores, and tests of several p-values per image."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from oodlit.base.checks import is_traced, number_of
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Scores


def p_values(ascending: Float[Tensor, "*tests images"], scores: Float[Tensor, "*tests batch"]) -> Tensor:
    """Return p = (1 + r) / (n + 1), r the rank of each score among n calibration scores, float64.

    r is the number of calibration scores that are not above the score, which makes p the conformal p-value. Between two
    calibration scores r is interpolated, so that rounding hardly moves p; p is never below the conformal p-value.
    If an image is exchangeable with the calibration images, P(p <= alpha) <= alpha.

    Args:
        ascending: Calibration scores in ascending order, float64; with several tests, one row each.
        scores: Scores; NaN stays NaN.

    Example:
        >>> p_values(torch.tensor([1.0, 2.0, 2.0, 4.0]).double(), torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0]))
        tensor([0.2000, 0.4000, 0.8000, 0.9000, 1.0000], dtype=torch.float64)
    """
    values, size = scores.double(), ascending.shape[-1]
    count = count_at_most(ascending, values)
    below, above = (ascending.gather(-1, at) for at in ((count - 1).clamp(min=0), count.clamp(max=size - 1)))
    step = (values - below) / (above - below)
    inside = (count > 0) & (count < size) & ~step.isnan()  # NaN next to infinite calibration scores
    step = step.where(inside, torch.zeros_like(step))
    return ((1 + count + step) / (size + 1)).masked_fill(values.isnan(), torch.nan)


def count_at_most(ascending: Shaped[Tensor, "*tests images"], values: Shaped[Tensor, "*tests batch"]) -> Tensor:
    """Return how many entries of a sorted tensor are not above each value; of a NaN, the number is arbitrary.

    Example:
        >>> count_at_most(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([0.0, 2.0, 3.0])).tolist()
        [0, 3, 3]
    """
    if not is_traced():
        return torch.searchsorted(ascending, values.contiguous(), right=True)
    size = ascending.shape[-1]  # ONNX has no search, so that the count is built from its bits
    count = torch.zeros_like(values, dtype=torch.int64)
    for bit in reversed(range(size.bit_length())):
        more = count + 2**bit
        is_below = (more <= size) & (ascending.gather(-1, more.clamp(max=size) - 1) <= values)
        count = torch.where(is_below, more, count)
    return count


def simes(p_values: Float[Tensor, "batch tests"]) -> Scores:
    """Return the p-value of Simes, min_i K p_(i) / i, from K p-values per image in any order.

    Example:
        >>> simes(torch.tensor([[0.02, 0.5, 0.03]], dtype=torch.float64))
        tensor([0.0450], dtype=torch.float64)
    """
    tests = p_values.shape[1]
    ranks = torch.arange(1, tests + 1, device=p_values.device)
    smallest: Tensor = (tests * p_values.sort(dim=1).values / ranks).amin(dim=1)
    return smallest


def benjamini_yekutieli(p_values: Float[Tensor, "batch tests"], alpha: float) -> Bool[Tensor, " batch"]:
    """Return which images to refuse: those with p_(i) <= alpha i / (K H_K) for any i, H_K = 1 + 1/2 + ... + 1/K.

    p_(1) <= ... <= p_(K) are the K p-values of an image. At most a fraction alpha of the images for which each p-value
    is valid (P(p <= t) <= t) is refused on average, however the p-values depend on each other. The refused images are
    those with a Simes p-value of at most alpha / H_K.

    Args:
        p_values: K p-values per image in any order, such as `Combined.p_values` returns.
        alpha: Largest fraction of refused in-distribution images, between 0 and 1.

    Raises:
        InvalidArgumentError: `alpha` is out of range.

    Source: Y. Benjamini and D. Yekutieli, The control of the false discovery rate in multiple testing under
    dependency, 2001.

    Example:
        >>> benjamini_yekutieli(torch.tensor([[0.03, 0.9], [0.04, 0.9], [0.06, 0.06]]), alpha=0.1)
        tensor([ True, False,  True])
    """
    if not 0 < number_of(alpha) < 1:
        raise InvalidArgumentError(f"benjamini_yekutieli: expected alpha to be between 0 and 1, got {alpha!r}")
    tests = p_values.shape[1]
    harmonic = sum(1 / i for i in range(1, tests + 1))
    limits = alpha * torch.arange(1, tests + 1, device=p_values.device, dtype=torch.float64) / (tests * harmonic)
    return (p_values.double().sort(dim=1).values <= limits).any(dim=1)
