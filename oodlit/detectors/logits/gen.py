"""Generalized entropy."""

from typing import ClassVar, final

from oodlit.base.checks import check_ints, check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.softmax import log_complements, log_softmax


@final
class GEN(TrainFreeDetector):
    """S = -sum over the `top` largest p of p^gamma (1 - p)^gamma.

    Computed from logarithms without a bound on p, so that confident images do not tie.

    Args:
        gamma: 0 < gamma <= 1, default 0.1.
        top: Number of largest probabilities to use, default 100; all of them if there are fewer classes.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> import torch
        >>> sure, unsure = GEN().score(Outputs(torch.tensor([[40.0, 0.0, 0.0], [1.0, 0.0, 0.0]])))
        >>> bool(sure > unsure)
        True
    """

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift", "class_permutation"})
    presets: ClassVar = {"imagenet": {"gamma": 0.1, "top": 100}, "cifar": {"gamma": 0.1, "top": 10}}
    reference = Reference(
        "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
        "X. Liu",
        "CVPR",
        2023,
        "https://openaccess.thecvf.com/content/CVPR2023/html/Liu_GEN_Pushing_the_Limits_of_Softmax-Based_Out-of-Distribution_Detection_CVPR_2023_paper.html",
    )

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        super().__init__()
        check_positive("GEN", gamma=gamma)
        if gamma > 1:
            raise InvalidArgumentError(f"GEN: expected gamma to be in (0, 1], got {gamma}")
        check_ints("GEN", top=top)
        self.gamma = gamma
        self.top = top

    def _score(self, outputs: Outputs) -> Scores:
        log_p, log_rest = log_softmax(outputs), log_complements(outputs)
        if self.top < log_p.shape[1]:
            log_p, largest = log_p.topk(self.top, dim=1, sorted=False)
            log_rest = log_rest.gather(1, largest)
        return -(self.gamma * (log_p + log_rest)).exp().sum(dim=1)
