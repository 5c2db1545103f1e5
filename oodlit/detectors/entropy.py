"""Negative entropy of the softmax."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.base import TrainFreeDetector
from oodlit.detectors.reference import Reference
from oodlit.detectors.softmax import log_softmax
from oodlit.outputs import Outputs

__all__ = ["Entropy", "negative_entropy"]


@final
class Entropy(TrainFreeDetector):
    """S = sum_c p_c log p_c, the negative entropy; 0 log 0 = 0.

    Example:
        >>> import torch
        >>> Entropy().score(Outputs(torch.tensor([[0.0, 0.0], [200.0, 0.0]])))
        tensor([-0.6931,  0.0000])
    """

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift", "class_permutation"})
    reference = Reference(
        "Entropy Maximization and Meta Classification for Out-of-Distribution Detection in Semantic Segmentation",
        "R. Chan",
        "ICCV",
        2021,
        "https://arxiv.org/abs/2012.06575",
        "the entropy score alone, without the training of the paper",
    )

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        return negative_entropy(outputs)


def negative_entropy(outputs: Outputs) -> Float[Tensor, " batch"]:
    """Sum of p log p, computed once per batch."""

    def compute() -> Tensor:
        log_p = log_softmax(outputs)
        p = log_p.exp()
        return (p * log_p.where(p > 0, p)).sum(dim=1)

    return outputs.memo("negative_entropy", compute)
