"""Energy score."""

from typing import final

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Outputs, Scores
from oodlit.detectors.contract import Reference, TrainFreeDetector


@final
class Energy(TrainFreeDetector):
    """S = T * log sum_c exp(z_c / T), the negative free energy.

    Args:
        temperature: T > 0, default 1.

    Raises:
        InvalidArgumentError: The temperature is not positive and finite.

    Example:
        >>> import torch
        >>> Energy().score(Outputs(torch.tensor([[90.0, 0.0, 0.0]])))
        tensor([90.])
        >>> Energy(temperature=1000.0).score(Outputs(torch.tensor([[5.0, 1.0, 1.0]])))
        tensor([1100.9474])
    """

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift_equivariance", "class_permutation"})
    reference = Reference(
        "Energy-based Out-of-distribution Detection", "W. Liu", "NeurIPS", 2020, "https://arxiv.org/abs/2010.03759"
    )

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        check_positive("Energy", temperature=temperature)
        self.temperature = temperature

    def _score(self, outputs: Outputs) -> Scores:
        if self.temperature == 1:
            return outputs.logsumexp
        return self.temperature * (outputs.require("logits") / self.temperature).logsumexp(dim=1)
