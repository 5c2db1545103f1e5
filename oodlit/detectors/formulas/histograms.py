"""Histograms of the values of each image, and their distance from a typical one."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.outputs import Scores


class Bins:
    """Equal bins between two ends; the last bin includes the upper end.

    Args:
        ends: Lower and upper end, shape (2,). If they are equal, the first bin contains that value.
        size: Number of bins.

    Example:
        >>> Bins(torch.tensor([0.0, 4.0]), 2).counts(torch.tensor([[0.0, 1.0, 2.0, 4.0, 5.0]])).tolist()
        [[2.0, 2.0]]
    """

    def __init__(self, ends: Float[Tensor, " 2"], size: int) -> None:
        self.low, self.high = ends.unbind()
        self.size = size

    def counts(self, values: Float[Tensor, "batch values"]) -> Float[Tensor, "batch bins"]:
        """Count the values of each image in each bin, float64; values outside the ends are ignored."""
        width = self.high - self.low
        position = (values - self.low) / width.where(width > 0, torch.ones_like(width)) * self.size
        inside = (values >= self.low) & (values <= self.high)
        index = position.where(inside, torch.zeros_like(position)).long().clamp_(max=self.size - 1)
        found = torch.zeros(values.shape[0], self.size, dtype=torch.float64, device=values.device)
        return found.scatter_add_(1, index, inside.double())


class InPlaceBins(Bins):
    """The same for one image at a time on a CPU, in memory that is allocated once: far faster for many values.

    Example:
        >>> InPlaceBins(torch.tensor([0.0, 4.0]), 2, (5,)).count(torch.tensor([0.0, 1.0, 2.0, 4.0, 5.0])).tolist()
        [2, 2]
    """

    def __init__(self, ends: Float[Tensor, " 2"], size: int, shape: tuple[int, ...]) -> None:
        super().__init__(ends, size)
        self._position, self._index = ends.new_empty(shape), torch.empty(shape, dtype=torch.int32)

    def count(self, values: Tensor) -> Tensor:
        """Count the values in each bin, int64."""
        width = (self.high - self.low).clamp(min=torch.finfo(values.dtype).tiny)
        torch.sub(values, self.low, out=self._position).div_(width).mul_(self.size)
        # The bins begin at 1, between one for values below and one for those above.
        self._index.copy_(self._position.clamp_(-1, self.size + 1).add_(1))
        counts = torch.bincount(self._index.flatten(), minlength=self.size + 3)
        if counts[self.size + 1]:  # the upper end
            counts[self.size] += (values[self._position >= self.size + 1] <= self.high).sum()
        return counts[1 : self.size + 1]


def smoothed(histograms: Float[Tensor, "batch bins"], width: int) -> Float[Tensor, "batch bins"]:
    """Average over `width` neighboring bins, repeating the ends; an even width reaches one bin farther up.

    Example:
        >>> smoothed(torch.tensor([[0.0, 4.0, 0.0, 0.0]]), 2).tolist()
        [[2.0, 2.0, 0.0, 0.0]]
    """
    padded = torch.nn.functional.pad(histograms[:, None], ((width - 1) // 2, width // 2), mode="replicate")[:, 0]
    return padded.unfold(1, width, 1).mean(dim=2)


def divergence(typical: Float[Tensor, " bins"], histograms: Float[Tensor, "batch bins"], least: float) -> Scores:
    """Return KL(p || q) + KL(q || p), after adding `least` to all bins and normalizing both."""
    p = (typical + least) / (typical + least).sum()
    q = (histograms + least) / (histograms + least).sum(dim=1, keepdim=True)
    return ((p - q) * (p.log() - q.log())).sum(dim=1)
