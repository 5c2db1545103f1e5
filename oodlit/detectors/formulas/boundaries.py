"""Distances of the decision boundaries of a linear head, shared by fDBD and ORA."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_usual, is_traced
from oodlit.base.outputs import Head, Logits, Outputs
from oodlit.detectors.contract import Detector
from oodlit.detectors.formulas.softmax import gaps
from oodlit.detectors.statistics import Statistics


def inverse_distances(detector: Detector, statistics: Statistics, head: Head) -> Float[Tensor, "classes classes"]:
    """Return 1 / |w_i - w_j| in float64, from the Gram matrix of the head, once per fit.

    Classes with equal weights have no boundary: their entry is zero, as is the diagonal, and the detector notes them.
    """
    inverse = statistics.memo("inverse_boundary_distances", lambda: _inverse_distances(head.weight.double()))
    twins = int(((inverse == 0).sum() - len(inverse)) // 2)
    if twins > 0:
        detector.note(f"{twins} pairs of classes have equal weights, so there is no boundary between these classes")
    return inverse.clone()


def _inverse_distances(weight: Tensor) -> Tensor:
    # Centered on their mean: the differences are the same, and their squares lose fewer digits.
    centered = weight - weight.mean(dim=0)
    gram = centered @ centered.T
    squares = gram.diagonal()[:, None] + gram.diagonal() - 2 * gram
    separate = squares > 1e-12 * gram.diagonal().amax()
    inverse = squares.where(separate, torch.ones_like(squares)).rsqrt() * separate
    return inverse.fill_diagonal_(0)


def unmasked_gaps(outputs: Outputs) -> Logits:
    """Return z - z_max of every class, and zero for masked classes, whose logit is minus infinity."""
    below, lowest = gaps(outputs), torch.finfo(outputs.require("logits").dtype).min
    if is_traced() or (len(outputs) and not check_usual(~(below.amin() <= lowest))):
        below = below.where(below > lowest, torch.zeros_like(below))
    return below
