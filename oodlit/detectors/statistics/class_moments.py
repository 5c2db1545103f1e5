"""Counts, means and scatter of the features."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from oodlit.detectors.distributed import Group, all_sum, gather_objects
from oodlit.detectors.statistics.base import Statistic
from oodlit.detectors.statistics.labels import train_labels
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = ["ClassMoments"]

PANELS = 4
"""Strips in which the scatter is accumulated."""


class ClassMoments(Statistic):
    """Counts, means and scatter of the features, per class and in total, in float64.

    The scatter is kept around the running mean (Chan, Golub and LeVeque 1983): a mean far from zero costs no digits.
    Memory: D x D + C x D doubles, whatever the number of images.

    Raises:
        InvalidArgumentError: A training image has no label, or the number of features changes.
    """

    needs = frozenset({"features", "labels"})
    count: Tensor
    mean: Tensor
    scatter: Tensor
    class_counts: Tensor
    class_sums: Tensor

    def __init__(self) -> None:
        """Start without a sample; shapes follow from the first batch."""
        super().__init__(sync_on_compute=False)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("mean", torch.zeros(0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("scatter", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("class_counts", torch.zeros(0, dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("class_sums", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ClassMoments":
        """One size fits all."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        features, labels = outputs.require("features").double(), train_labels(outputs)
        self._allocate(features.shape[1], int(labels.max()) + 1, features.device)
        if features.shape[1] != len(self.mean):
            raise InvalidArgumentError(
                f"ClassMoments: a batch has {features.shape[1]} features after batches with {len(self.mean)}"
            )
        mean = features.mean(dim=0)
        centred = features - mean
        self._move_mean(mean, len(features))
        # A symmetric matrix: strips from the diagonal to the right are enough, and a third cheaper.
        width = len(mean)
        for panel in range(PANELS):
            rows = slice(width * panel // PANELS, width * (panel + 1) // PANELS)
            self.scatter[rows, rows.start :].addmm_(centred[:, rows].T, centred[:, rows.start :])
        self.class_counts += torch.bincount(labels, minlength=len(self.class_counts))
        self.class_sums.index_add_(0, labels, features)

    def merge(self, other: "ClassMoments") -> None:
        """Take in what `other` has seen."""
        if other.num_samples == 0:
            return
        num_classes = max(len(self.class_counts), len(other.class_counts))
        self._allocate(len(other.mean), num_classes, other.mean.device)
        self._move_mean(other.mean, other.num_samples)
        self.scatter += other.scatter
        self.class_counts[: len(other.class_counts)] += other.class_counts
        self.class_sums[: len(other.class_counts)] += other.class_sums

    def synchronize(self, group: Group) -> None:
        """Sum over the processes; the scatter moves to the common mean first."""
        shapes = gather_objects(group, tuple(self.class_sums.shape))
        if len(shapes) == 1:
            return
        num_classes, width = (max(s[i] for s in shapes) for i in (0, 1))
        self._allocate(width, num_classes, self.mean.device)
        local_count, local_mean = int(self.count), self.mean
        self.count = all_sum(group, self.count)
        self.class_counts = all_sum(group, self.class_counts)
        self.class_sums = all_sum(group, self.class_sums)
        self.mean = all_sum(group, local_mean * local_count) / max(int(self.count), 1)
        delta = local_mean - self.mean
        self.scatter = all_sum(group, self.scatter.addr(delta, delta, alpha=local_count))

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * width * (width + num_classes)

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.count)

    @property
    def counts(self) -> Tensor:
        """Images per class, int64, shape (classes,); classes above the largest label seen are absent."""
        return self.class_counts

    @property
    def class_ids(self) -> Tensor:
        """Ids of the classes that have at least one image, ascending."""
        return self.class_counts.nonzero().flatten()

    @property
    def class_means(self) -> Tensor:
        """Mean feature of every class in `class_ids`, float64, shape (present classes, features)."""
        return self.class_sums[self.class_ids] / self.class_counts[self.class_ids, None]

    @property
    def total_covariance(self) -> Tensor:
        """(1/N) sum (x - mean)(x - mean)', float64, shape (features, features)."""
        return self._scatter_matrix() / self.count

    @property
    def within_covariance(self) -> Tensor:
        """(1/N) sum (x - mu_y)(x - mu_y)': pooled over classes, every image with the same weight."""
        deviation = (self.class_means - self.mean) * self.class_counts[self.class_ids, None].sqrt()
        return (self._scatter_matrix() - deviation.T @ deviation) / self.count

    def _scatter_matrix(self) -> Tensor:
        """The whole matrix; only its upper triangle is accumulated."""
        return self.scatter.triu() + self.scatter.triu(1).T

    def _move_mean(self, mean: Tensor, m: int) -> None:
        n = int(self.count)
        delta = mean - self.mean
        self.scatter.addr_(delta, delta, alpha=n * m / (n + m))
        self.mean += delta * (m / (n + m))
        self.count += m

    def _allocate(self, width: int, num_classes: int, device: torch.device) -> None:
        if len(self.mean) == 0:
            self.count = self.count.to(device)
            self.mean = torch.zeros(width, dtype=torch.float64, device=device)
            self.scatter = torch.zeros(width, width, dtype=torch.float64, device=device)
            self.class_counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
            self.class_sums = torch.zeros(num_classes, width, dtype=torch.float64, device=device)
        missing = num_classes - len(self.class_counts)
        if missing > 0:
            self.class_counts = torch.nn.functional.pad(self.class_counts, (0, missing))
            self.class_sums = torch.nn.functional.pad(self.class_sums, (0, 0, 0, missing))
