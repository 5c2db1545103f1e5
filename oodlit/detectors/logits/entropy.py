"""Negative entropy of the softmax."""

from typing import final

from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.softmax import negative_entropy


@final
class Entropy(TrainFreeDetector):
    """S = sum_c p_c log p_c, the negative entropy; 0 log 0 = 0.

    Example:
        >>> import torch
        >>> Entropy().score(Outputs(torch.tensor([[0.0, 0.0], [20.0, 0.0]])))
        tensor([-6.9315e-01, -4.3284e-08])
    """

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift", "class_permutation"})
    reference = Reference(
        "Entropy Maximization and Meta Classification for Out-of-Distribution Detection in Semantic Segmentation",
        "R. Chan",
        "ICCV",
        2021,
        "https://arxiv.org/abs/2012.06575",
        "only the entropy score of the paper, without its training method",
    )

    def _score(self, outputs: Outputs) -> Scores:
        return negative_entropy(outputs)
