"""Mean softmax per predicted class."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from oodlit.checks import check_alike
from oodlit.detectors.statistics.base import Statistic
from oodlit.distributed import Group, all_sum, gather_objects
from oodlit.outputs import Outputs

__all__ = ["ClassProbabilities"]


class ClassProbabilities(Statistic):
    """Mean softmax of the training images predicted as class k, in float64.

    The softmax itself is taken in float64: means of 1e-60 and less occur and matter (KL matching).
    Memory: C x C doubles.
    """

    needs = frozenset({"logits"})
    sums: Tensor
    class_counts: Tensor

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("sums", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("class_counts", torch.zeros(0, dtype=torch.int64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ClassProbabilities":
        """The same for all detectors."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        logits = outputs.require("logits")
        self._allocate(logits.shape[1], logits.device)
        self.class_counts += torch.bincount(outputs.predictions, minlength=logits.shape[1])
        self.sums.index_add_(0, outputs.predictions, logits.double().softmax(dim=1))

    def merge(self, other: "ClassProbabilities") -> None:
        """Take in what `other` has seen."""
        if other.num_samples == 0:
            return
        self._allocate(len(other.class_counts), other.sums.device)
        check_alike(self, len(self.sums), len(other.sums))
        self.sums += other.sums
        self.class_counts += other.class_counts

    def synchronize(self, group: Group) -> None:
        """Sum over the processes."""
        sizes = gather_objects(group, len(self.class_counts))
        if len(sizes) == 1:
            return
        self._allocate(max(sizes), self.sums.device)
        self.sums, self.class_counts = all_sum(group, self.sums), all_sum(group, self.class_counts)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * num_classes * num_classes

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.class_counts.sum())

    @property
    def counts(self) -> Tensor:
        """Images predicted as each class, int64, shape (classes,)."""
        return self.class_counts

    @property
    def means(self) -> Tensor:
        """Mean softmax per predicted class, float64, (classes, classes); rows of never predicted classes are NaN."""
        return self.sums / self.class_counts[:, None]

    def _allocate(self, num_classes: int, device: torch.device) -> None:
        if len(self.class_counts) == 0:
            self.sums = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=device)
            self.class_counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
