"""Maximum logit."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector


@final
class MaxLogit(TrainFreeDetector):
    """S = max_c z_c.

    Example:
        >>> import torch
        >>> MaxLogit().score(Outputs(torch.tensor([[0.0, 2.0], [-1.0, -3.0]])))
        tensor([ 2., -1.])
    """

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift_equivariance", "class_permutation"})
    reference = Reference(
        "Scaling Out-of-Distribution Detection for Real-World Settings",
        "D. Hendrycks",
        "ICML",
        2022,
        "https://arxiv.org/abs/1911.11132",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return outputs.max_logits
