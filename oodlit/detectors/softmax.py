"""Softmax quantities that keep their digits where one class takes almost everything."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.outputs import Outputs

__all__ = ["log_complements", "log_max_probability", "log_softmax"]


def log_max_probability(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, " batch"]:
    """Log max_c softmax(z)_c = -log(1 + sum over the others of exp(z - z_max)).

    log1p keeps what a probability would round to 1, and z_max - LSE to 0.

    Example:
        >>> log_max_probability(torch.tensor([[40.0, 0.0]]))
        tensor([-4.2484e-18])
    """
    return -_log_rest(logits).exp().log1p()


def log_softmax(outputs: Outputs) -> Float[Tensor, "batch classes"]:
    """Log p of every class, exact to a few units in the last place also for p near 1; once per batch."""

    def compute() -> Tensor:
        logits, best = outputs.require("logits"), outputs.predictions[:, None]
        largest = log_max_probability(logits)[:, None]
        return (logits - outputs.max_logits[:, None] + largest).scatter(1, best, largest)

    return outputs.memo("log_softmax", compute)


def log_complements(outputs: Outputs) -> Float[Tensor, "batch classes"]:
    """log(1 - p) of every class, without cancellation for p near 1; once per batch."""

    def compute() -> Tensor:
        log_p, best = log_softmax(outputs), outputs.predictions[:, None]
        others = torch.log1p(-log_p.exp().scatter(1, best, 0))
        return others.scatter(1, best, _log_rest(outputs.require("logits"))[:, None] + log_p.gather(1, best))

    return outputs.memo("log_complements", compute)


def _log_rest(logits: Tensor) -> Tensor:
    """Log of the sum over all classes but the largest of exp(z - z_max)."""
    largest, best = logits.max(dim=1, keepdim=True)
    return logits.scatter(1, best, -float("inf")).logsumexp(dim=1) - largest.squeeze(1)
