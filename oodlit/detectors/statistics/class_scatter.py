"""Scatter of the features within each class, as matrices or their diagonals."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from oodlit.base.checks import check_same_shape
from oodlit.base.errors import RequirementError
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, all_sum, gather_objects
from oodlit.detectors.statistics.class_labels import train_labels
from oodlit.detectors.statistics.statistic import Statistic


class _ClassScatter(Statistic):
    """Counts, running means and scatter around them, per class, in float64 (Chan, Golub and LeVeque 1983)."""

    needs = frozenset({"features", "labels"})
    class_counts: Tensor
    running_means: Tensor
    scatter: Tensor

    def __init__(self) -> None:
        means, scatter = torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        super().__init__(class_counts=torch.zeros(0, dtype=torch.int64), running_means=means, scatter=scatter)

    @abstractmethod
    def _shape(self, num_classes: int, width: int) -> tuple[int, ...]:
        """Return the shape of the scatter."""

    @abstractmethod
    def _add(self, classes: Tensor, rows: Tensor, of_class: Tensor, weights: Tensor) -> None:
        """Add weights_i * x_i x_i' of the `rows` to the scatter of class classes[of_class_i]."""

    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch."""
        features, labels = outputs.require("features").double(), train_labels(outputs)
        self._allocate(int(labels.max()) + 1, features.shape[1], features.device)
        classes, of_class, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        means = features.new_zeros(len(classes), features.shape[1]).index_add_(0, of_class, features) / counts[:, None]
        self._add(classes, features - means[of_class], of_class, features.new_ones(len(features)))
        self._move(classes, means, counts)

    def _move(self, classes: Tensor, means: Tensor, counts: Tensor) -> None:
        """Move the running means of some classes to include `counts` images with other means."""
        before = self.class_counts[classes]
        delta = means - self.running_means[classes]
        total = (before + counts).double()
        self._add(classes, delta, torch.arange(len(classes), device=classes.device), before * counts / total)
        self.running_means[classes] += delta * (counts / total)[:, None]
        self.class_counts[classes] += counts

    def merge(self, other: "_ClassScatter") -> None:
        """Add the data of `other`."""
        if other.num_samples == 0:
            return
        if self.num_samples:
            check_same_shape(self, self.running_means.shape[1], other.running_means.shape[1])
        self._allocate(len(other.class_counts), other.running_means.shape[1], other.scatter.device)
        classes = other.class_counts.nonzero().flatten()
        self.scatter[: len(other.scatter)] += other.scatter
        self._move(classes, other.running_means[classes], other.class_counts[classes])

    def synchronize(self, group: Group) -> None:
        """Sum over the processes; the scatter moves to the common means first."""
        shapes = gather_objects(group, tuple(self.running_means.shape))
        if len(shapes) == 1:
            return
        num_classes, width = (max(s[i] for s in shapes) for i in (0, 1))
        self._allocate(num_classes, width, self.scatter.device)
        counts, means = self.class_counts, self.running_means
        self.class_counts = all_sum(group, counts)
        sums = all_sum(group, means * counts[:, None])
        self.running_means = sums / self.class_counts.clamp(min=1)[:, None]
        every = torch.arange(num_classes, device=counts.device)
        self._add(every, means - self.running_means, every, counts.double())
        self.scatter = all_sum(group, self.scatter)

    @property
    def class_ids(self) -> Tensor:
        """Ids of the classes with at least one image, ascending."""
        return self.class_counts.nonzero().flatten()

    @property
    def counts(self) -> Tensor:
        """Images per class in `class_ids`."""
        return self.class_counts[self.class_ids]

    @property
    def class_means(self) -> Tensor:
        """Mean feature of every class in `class_ids`, (present classes, features)."""
        return self.running_means[self.class_ids]

    def _allocate(self, num_classes: int, width: int, device: torch.device) -> None:
        missing = num_classes - len(self.class_counts)
        if missing <= 0:
            return
        grown = torch.zeros(self._shape(num_classes, width), dtype=torch.float64, device=device)
        means = torch.zeros(num_classes, width, dtype=torch.float64, device=device)
        if len(self.class_counts):
            grown[: len(self.scatter)], means[: len(self.running_means)] = self.scatter, self.running_means
        self.scatter, self.running_means = grown, means
        self.class_counts = torch.nn.functional.pad(self.class_counts.to(device), (0, missing))


class ClassCovariances(_ClassScatter):
    """A covariance matrix per class. Memory: C x D x D doubles.

    Args:
        max_bytes: Memory limit; a larger training set is refused. None = no limit.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__()
        self.max_bytes = max_bytes

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ClassCovariances":
        """Create the statistic with the largest setting `max_bytes` of the detectors."""
        limits = [limit for d in detectors if (limit := getattr(d, "max_bytes", None)) is not None]
        return cls(max(limits, default=None))

    def _shape(self, num_classes: int, width: int) -> tuple[int, ...]:
        needed = 8 * num_classes * width**2
        if self.max_bytes is not None and needed > self.max_bytes:
            raise RequirementError(
                f"{num_classes} covariances of {width} features require {needed / 2**30:.1f} GiB, above the limit of"
                f" {self.max_bytes / 2**30:.1f} GiB; use covariance='tied' or 'diagonal' in DDU, or raise max_bytes"
            )
        return (num_classes, width, width)

    def _add(self, classes: Tensor, rows: Tensor, of_class: Tensor, weights: Tensor) -> None:
        for i, label in enumerate(classes.tolist()):
            mine = of_class == i
            self.scatter[label].addmm_((rows[mine] * weights[mine, None]).T, rows[mine])

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state."""
        return 8 * num_classes * width * width

    @property
    def covariances(self) -> Tensor:
        """(1/n_c) sum (x - mu_c)(x - mu_c)' of every class in `class_ids`, (present classes, features, features)."""
        return self.scatter[self.class_ids] / self.counts[:, None, None]


class ClassVariances(_ClassScatter):
    """The variances of the features per class. Memory: 2 x C x D doubles."""

    def _shape(self, num_classes: int, width: int) -> tuple[int, ...]:
        return (num_classes, width)

    def _add(self, classes: Tensor, rows: Tensor, of_class: Tensor, weights: Tensor) -> None:
        self.scatter.index_add_(0, classes[of_class], rows.square() * weights[:, None])

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state."""
        return 16 * num_classes * width

    @property
    def variances(self) -> Tensor:
        """(1/n_c) sum (x - mu_c)^2 of every class in `class_ids`, (present classes, features)."""
        return self.scatter[self.class_ids] / self.counts[:, None]
