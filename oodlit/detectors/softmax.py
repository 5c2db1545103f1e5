"""Softmax quantities that keep their digits where one class takes almost everything.

With d = z - z_max and r = the sum of exp(d) over all classes but the largest, log p = d - log(1 + r). Nothing cancels:
a probability that rounds to 1 has a logarithm of -r, and r reaches down to the smallest floating-point numbers.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.outputs import Outputs

__all__ = ["gaps", "log_complements", "log_max_probability", "log_softmax", "negative_entropy", "odds_against"]


def log_max_probability(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, " batch"]:
    """Log max_c softmax(z)_c.

    Example:
        >>> log_max_probability(torch.tensor([[40.0, 0.0]]))
        tensor([-4.2484e-18])
    """
    return -_odds_against(_gaps(logits, logits.amax(dim=1)).exp_()).log1p()


def log_softmax(outputs: Outputs) -> Float[Tensor, "batch classes"]:
    """Log p of every class; once per batch."""
    return outputs.memo("log_softmax", lambda: gaps(outputs) - odds_against(outputs).log1p()[:, None])


def log_complements(outputs: Outputs) -> Float[Tensor, "batch classes"]:
    """log(1 - p) of every class; once per batch."""

    def compute() -> Tensor:
        best, odds = outputs.predictions[:, None], odds_against(outputs)[:, None]
        others = torch.log1p(-log_softmax(outputs).exp().scatter_(1, best, 0))
        return others.scatter_(1, best, odds.log() - odds.log1p())

    return outputs.memo("log_complements", compute)


def negative_entropy(outputs: Outputs) -> Float[Tensor, " batch"]:
    """Sum of p log p; 0 log 0 = 0; once per batch."""

    def compute() -> Tensor:
        odds = odds_against(outputs)
        mean_gap: Tensor = torch.linalg.vecdot(_ratios(outputs), gaps(outputs)) / (1 + odds)
        return mean_gap - odds.log1p()

    return outputs.memo("negative_entropy", compute)


def gaps(outputs: Outputs) -> Float[Tensor, "batch classes"]:
    """Z - z_max, finite; once per batch."""
    return outputs.memo("logit_gaps", lambda: _gaps(outputs.require("logits"), outputs.max_logits))


def odds_against(outputs: Outputs) -> Float[Tensor, " batch"]:
    """(1 - p_max) / p_max; once per batch."""
    return outputs.memo("odds_against", lambda: _odds_against(_ratios(outputs)))


def _gaps(logits: Tensor, largest: Tensor) -> Tensor:
    return (logits - largest[:, None]).clamp_(min=torch.finfo(logits.dtype).min)


def _ratios(outputs: Outputs) -> Tensor:
    """Probabilities relative to the largest; once per batch."""
    return outputs.memo("probability_ratios", lambda: gaps(outputs).exp())


def _odds_against(ratios: Tensor) -> Tensor:
    # The fractional part of 1 is 0: it takes the largest class out, and its equals, which are counted.
    total, others = ratios.sum(dim=1), ratios.frac().sum(dim=1)
    return others + ((total - others).round() - 1)
