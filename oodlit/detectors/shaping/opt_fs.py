"""OptFS: weight features by what features of their size contribute in training."""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.percentile import feature_percentile
from oodlit.detectors.statistics import Statistics, TrainSample

LOW, HIGH = 0.1, 99.9
"""Percentiles of all features that delimit the bins."""
ENERGY_NORM = 1000.0
"""Norm of theta for "energy", as in the authors' code."""
ROWS = 1024
"""Images whose contributions are computed at a time."""


@final
class OptFS(Detector):
    """S = sum_j theta_b w_yj x_j: y the prediction, b the bin of x_j, theta_b the contribution of bin b in training.

    The bins are equal parts of the range from the 0.1 % to the 99.9 % quantile of all training features pooled, and
    include their lower edge. theta_b is the mean over training images of the sum of w_yj x_j over the entries in bin b,
    and theta has norm 1. Entries outside all bins count as 0. Quantiles and means are over a sample of the training
    images (all up to 50,000), with the predictions of the head.

    If the features have no range, or no bin contributes, theta is the same for all entries, and a note reports this.

    Args:
        bins: Number of bins, at least 1, default 100.
        form: "projection" (default; the sum above) or "energy" (LSE(W (theta * x) + b) with a theta of norm 1000).

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
        >>> head, detector = Head(torch.eye(2)), OptFS(bins=2)
        >>> fit([detector], [Outputs(head(x), x)], head)
        >>> q = torch.tensor([[2.0, 0.0], [9.0, 0.0]])  # 9 lies outside of the bins
        >>> inside, outside = detector.score(Outputs(head(q), q)).tolist()
        >>> inside > outside
        True
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (TrainSample,)
    sample_fields = frozenset({"features"})
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {"projection": {"form": "projection"}, "energy": {"form": "energy"}}
    reference = Reference(
        "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection",
        "Q. Zhao",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2402.00865",
        "at most 50,000 training images are used; for form 'energy', theta has the norm 1000 as in the"
        " authors' code, although a comment in this code mentions 10",
    )

    def __init__(self, bins: int = 100, form: Literal["projection", "energy"] = "projection") -> None:
        super().__init__()
        check_ints("OptFS", bins=bins)
        check_choice("OptFS", "form", form, ("projection", "energy"))
        self.bins, self.form = bins, form

    def _fit(self, statistics: Statistics, head: Head) -> None:
        features = statistics[TrainSample].column("features", ordered=False)
        low, high = (feature_percentile(statistics, percent) for percent in (LOW, HIGH))
        self.keep(weight=head.weight.double().clone(), bias=head.offset.double().clone())
        self.keep(low=self.weight.new_tensor(low), width=self.weight.new_tensor((high - low) / self.bins))
        sums = self.weight.new_zeros(self.bins + 1)  # the last one: outside all bins
        for part in torch.split(features, ROWS):
            x = part.to(head.weight.device)
            sums.index_add_(0, self._bins(x).flatten(), (self.weight[head(x).argmax(dim=1)] * x).flatten())
        sums[-1] = 0
        norm = float(torch.linalg.vector_norm(sums))
        if norm == 0 or high <= low:
            self.note(
                "the training features are almost all equal, or none of them affects the logits, so all features get"
                " the same weight and are not shaped"
            )
            sums, norm = torch.ones_like(sums), (self.bins + 1) ** 0.5
        self.keep(theta=sums / norm * (ENERGY_NORM if self.form == "energy" else 1.0))

    def _bins(self, features: Float[Tensor, "batch features"]) -> Int[Tensor, "batch features"]:
        """Return the index of each entry's bin; `bins` for entries outside."""
        position = ((features.double() - self.low) / self.width.where(self.width > 0, 1.0)).floor()
        inside = (position >= 0) & (position < self.bins)
        return position.where(inside, torch.full_like(position, self.bins)).long()

    def _score(self, outputs: Outputs) -> Scores:
        features = outputs.require("features")
        shaped = self.theta[self._bins(features)] * features
        if self.form == "energy":
            return torch.addmm(self.bias, shaped, self.weight.T).logsumexp(dim=1)
        return (self.weight[outputs.predictions] * shaped).sum(dim=1)
