"""Norm of the last layer's gradient."""

from typing import final

import torch

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector


@final
class GradNorm(TrainFreeDetector):
    """S = |x|_1 * sum_c |C p_c - 1|: the L1 norm of the gradient of sum_c -log p_c with respect to the head's weight.

    Closed form; no backward pass.

    Example:
        >>> import torch
        >>> GradNorm().score(Outputs(torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([[1.0, -2.0], [1.0, -2.0]])))
        tensor([0., 6.], dtype=torch.float64)
    """

    needs = frozenset({"logits", "features"})
    invariances = frozenset({"logit_shift", "class_permutation"})
    reference = Reference(
        "On the Importance of Gradients for Detecting Distributional Shifts in the Wild",
        "R. Huang",
        "NeurIPS",
        2021,
        "https://arxiv.org/abs/2110.00218",
        "gradients are summed over classes, as in the authors' code, whereas the paper averages over classes",
    )

    def _score(self, outputs: Outputs) -> Scores:
        p = outputs.probabilities
        gradient = (p * p.shape[1] - 1).abs().sum(dim=1)
        return outputs.require("features").abs().sum(dim=1, dtype=torch.float64) * gradient
