"""Softmax quantities that keep their precision when one class dominates.

With d = z - z_max and r = the sum of exp(d) = p / p_max over all classes but the largest, log p = d - log(1 + r).
Nothing cancels: a probability that rounds to 1 has a logarithm of -r, and r extends to the smallest floating-point
numbers. All exponentials come from one softmax, which is faster than `exp` of the differences.
"""

import torch
from torch import Tensor

from oodlit.base.checks import is_traced
from oodlit.base.outputs import Logits, Outputs, Scores

ROWS = 128
"""Images whose ratios are computed at a time on a CPU. Allocating memory for a whole batch each time costs many times
the computation."""


def log_max_probability(logits: Logits) -> Scores:
    """Return log max_c softmax(z)_c.

    Example:
        >>> log_max_probability(torch.tensor([[40.0, 0.0]]))
        tensor([-4.2484e-18])
    """
    return -odds_against(Outputs(logits)).log1p()


def logsumexp_(logits: Logits) -> Scores:
    """Return the log-sum-exp as in `Outputs.logsumexp`, overwriting the logits.

    Example:
        >>> logsumexp_(torch.tensor([[90.0, 0.0]]))
        tensor([90.])
    """
    largest = logits.amax(dim=1)
    return largest - torch.softmax(logits, dim=1, out=logits).amax(dim=1).log()


def log_softmax(outputs: Outputs) -> Logits:
    """Return log p of every class, once per batch."""
    return outputs.memo("log_softmax", lambda: gaps(outputs) - odds_against(outputs).log1p()[:, None])


def log_complements(outputs: Outputs) -> Logits:
    """Return log(1 - p) of every class, once per batch."""

    def compute() -> Tensor:
        best, odds = outputs.predictions[:, None], odds_against(outputs)[:, None]
        others = torch.log1p(-log_softmax(outputs).exp().scatter_(1, best, 0))
        return others.scatter_(1, best, odds.log() - odds.log1p())

    return outputs.memo("log_complements", compute)


def negative_entropy(outputs: Outputs) -> Scores:
    """Return the sum of p log p with 0 log 0 = 0, once per batch."""

    def compute() -> Tensor:
        return (outputs.probabilities * gaps(outputs)).sum(dim=1) - odds_against(outputs).log1p()

    return outputs.memo("negative_entropy", compute)


def gaps(outputs: Outputs) -> Logits:
    """Return z - z_max, clamped to finite values, once per batch."""

    def compute() -> Tensor:
        logits = outputs.require("logits")
        return (logits - outputs.max_logits[:, None]).clamp_(min=torch.finfo(logits.dtype).min)

    return outputs.memo("logit_gaps", compute)


def odds_against(outputs: Outputs) -> Scores:
    """Return (1 - p_max) / p_max, once per batch."""

    def compute() -> Tensor:
        probabilities, largest = outputs.probabilities, outputs.max_probabilities[:, None]
        if is_traced() or probabilities.device.type != "cpu":
            return _odds_against(probabilities, largest)
        parts = zip(torch.split(probabilities, ROWS), torch.split(largest, ROWS), strict=True)
        return torch.cat([_odds_against(*part) for part in parts])

    return outputs.memo("odds_against", compute)


def _odds_against(probabilities: Tensor, largest: Tensor) -> Tensor:
    ratios = probabilities / largest  # exactly 1 for the largest
    # The fractional part of 1 is 0: this leaves out the largest class and its equals, which are counted below.
    total, others = ratios.sum(dim=1), ratios.frac_().sum(dim=1)
    return others + ((total - others).round() - 1)
