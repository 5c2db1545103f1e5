"""RAS: replace the sorted features by those of a mean training image."""

from typing import final

import torch
from torch import Tensor

from oodlit.base.outputs import Features, Head
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.shaping import Shaped, Shaping
from oodlit.detectors.statistics import RankMeans, Statistics


@final
class RAS(Shaping):
    """S = `then` on the logits of x': x'_j = m_r, r the rank of x_j in x, m_r the mean of the r-th smallest feature.

    The mean is over the training images. Equal features get the mean of m over their ranks, so that the score does not
    depend on the order in which they are sorted. Nothing is tuned, and features may have both signs.

    Args:
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    Raises:
        InvalidArgumentError: `then` cannot score features that were changed.

    Example:
        >>> from oodlit.detectors import MaxLogit, fit
        >>> from oodlit.outputs import Head, Outputs
        >>> detector, head = RAS(then=MaxLogit()), Head(torch.eye(3))
        >>> train = torch.tensor([[3.0, 0.0, 1.0], [2.0, 7.0, 0.0]])  # m = 0, 1.5, 5
        >>> fit([detector], [Outputs(features=train)], head)
        >>> x = torch.tensor([[2.0, 2.0, 1.0]])
        >>> detector.score(Outputs(head(x), x))  # (1.5 + 5) / 2
        tensor([3.2500], dtype=torch.float64)
    """

    statistics = (RankMeans,)
    reference = Reference(
        "Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection",
        "G. Guglielmo and M. Masana",
        "arXiv",
        2026,
        "https://arxiv.org/abs/2604.08572",
        "equal features get equal values, whereas the authors' values depend on the order of sorting",
    )

    def _prepare(self, statistics: Statistics, head: Head) -> None:
        means = statistics[RankMeans].means
        self.keep(means=means, sums=torch.cat([means.new_zeros(1), means.cumsum(dim=0)]))

    def _shape(self, features: Features) -> Shaped:
        ordered, places = features.sort(dim=1)
        first, last = _runs(ordered)
        # A single value is not a difference of sums, which would lose digits.
        means = ((self.sums[last + 1] - self.sums[first]) / (last + 1 - first)).where(first < last, self.means)
        return torch.empty_like(means).scatter_(1, places, means), None


def _runs(ordered: Features) -> tuple[Tensor, Tensor]:
    """Return the first and the last position of the run of equal values at every position of sorted rows."""
    width = ordered.shape[1]
    positions = torch.arange(width, device=ordered.device).expand_as(ordered)
    differs = ordered[:, 1:] != ordered[:, :-1]
    starts = torch.nn.functional.pad(differs, (1, 0), value=True)
    ends = torch.nn.functional.pad(differs, (0, 1), value=True)
    first = positions.where(starts, torch.zeros_like(positions)).cummax(dim=1).values
    last = positions.where(ends, torch.full_like(positions, width - 1)).flip(1).cummin(dim=1).values.flip(1)
    return first, last
