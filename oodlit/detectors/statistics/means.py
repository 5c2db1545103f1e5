"""Means of the features: over all images, and per class over the correctly classified ones."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from oodlit.checks import all_finite, check_alike
from oodlit.detectors.statistics.base import Statistic
from oodlit.detectors.statistics.labels import train_labels
from oodlit.distributed import Group, all_sum, gather_objects
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = ["CorrectMeans", "FeatureMean"]

ROWS = 2048
"""Images added at a time: they stay in the cache."""
PROBE = 32
"""Images of a batch from which it is seen how far from zero the features are."""
NEAR = 8.0
"""Largest mean of a feature, in units of the spread, at which features are added as they are."""


class FeatureMean(Statistic):
    """Mean feature of all training images; needs no labels. Memory: D doubles.

    Features, or their differences to a centre where the mean is far from zero, are added in their own dtype, at least
    float32, where torch adds in cascades: the error is below 1e-6 of their spread. Everything else is float64.
    """

    needs = frozenset({"features"})
    rows_at_a_time = None
    count: Tensor
    sum: Tensor

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("sum", torch.zeros(0, dtype=torch.float64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "FeatureMean":
        """The same for all detectors."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        features = outputs.require("features")
        self._allocate(features.shape[1], features.device)
        if features.shape[1] != len(self.sum):
            raise InvalidArgumentError(
                f"FeatureMean: a batch has {features.shape[1]} features after batches with {len(self.sum)}"
            )
        self.sum.add_(_sums(outputs))
        self.count.add_(len(features))

    def finite_proxy(self, outputs: Outputs) -> dict[str, Tensor]:
        """The sums of the features, which are not finite where a feature is not."""
        return {"features": _sums(outputs)}

    def merge(self, other: "FeatureMean") -> None:
        """Take in what `other` has seen."""
        if other.num_samples:
            self._allocate(len(other.sum), other.sum.device)
            check_alike(self, len(self.sum), len(other.sum))
            self.sum += other.sum
            self.count += other.count

    def synchronize(self, group: Group) -> None:
        """Sum over the processes."""
        widths = gather_objects(group, len(self.sum))
        if len(widths) > 1:
            self._allocate(max(widths), self.sum.device)
            self.sum, self.count = all_sum(group, self.sum), all_sum(group, self.count)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * width

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.count)

    @property
    def mean(self) -> Tensor:
        """Mean feature, float64, shape (features,)."""
        return self.sum / self.count

    def _allocate(self, width: int, device: torch.device) -> None:
        if len(self.sum) == 0:
            self.count = self.count.to(device)
            self.sum = torch.zeros(width, dtype=torch.float64, device=device)


class CorrectMeans(Statistic):
    """Mean feature per class, over its images that the classifier gets right and over all of them, in float64.

    Memory: 2 x C x D doubles.
    """

    needs = frozenset({"features", "logits", "labels"})
    seen: Tensor
    right_counts: Tensor
    right_sums: Tensor
    class_counts: Tensor
    class_sums: Tensor

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        for kind in ("right", "class"):
            self.add_state(f"{kind}_counts", torch.zeros(0, dtype=torch.int64), dist_reduce_fx=None)
            self.add_state(f"{kind}_sums", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "CorrectMeans":
        """The same for all detectors."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        num_classes = outputs.require("logits").shape[1]
        features, labels = outputs.require("features").double(), train_labels(outputs, num_classes)
        self._allocate(num_classes, features.shape[1], features.device)
        right = outputs.predictions == labels
        self.seen += len(labels)
        self.right_counts += torch.bincount(labels[right], minlength=num_classes)
        self.right_sums.index_add_(0, labels[right], features[right])
        self.class_counts += torch.bincount(labels, minlength=num_classes)
        self.class_sums.index_add_(0, labels, features)

    def merge(self, other: "CorrectMeans") -> None:
        """Take in what `other` has seen."""
        if other.num_samples:
            num_classes, width = other.class_sums.shape
            self._allocate(num_classes, width, other.class_sums.device)
            check_alike(self, tuple(self.class_sums.shape), (num_classes, width))
            self.seen += other.seen
            for name in _SUMS:
                getattr(self, name).add_(getattr(other, name))

    def synchronize(self, group: Group) -> None:
        """Sum over the processes."""
        shapes = gather_objects(group, tuple(self.class_sums.shape))
        if len(shapes) > 1:
            num_classes, width = (max(s[i] for s in shapes) for i in (0, 1))
            self._allocate(num_classes, width, self.class_sums.device)
            for name in ("seen", *_SUMS):
                setattr(self, name, all_sum(group, getattr(self, name)))

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 16 * num_classes * width

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.seen)

    @property
    def means(self) -> Tensor:
        """Mean feature of the correctly classified images, (classes, features); NaN for classes without one."""
        return self.right_sums / self.right_counts[:, None]

    @property
    def class_means(self) -> Tensor:
        """Mean feature of all images, (classes, features); NaN for classes without an image."""
        return self.class_sums / self.class_counts[:, None]

    @property
    def mean(self) -> Tensor:
        """Mean feature of all images of all classes, (features,)."""
        return self.class_sums.sum(dim=0) / self.seen

    def _allocate(self, num_classes: int, width: int, device: torch.device) -> None:
        if len(self.class_counts) == 0:
            self.seen = self.seen.to(device)
            for kind in ("right", "class"):
                setattr(self, f"{kind}_counts", torch.zeros(num_classes, dtype=torch.int64, device=device))
                setattr(self, f"{kind}_sums", torch.zeros(num_classes, width, dtype=torch.float64, device=device))


_SUMS = ("right_counts", "right_sums", "class_counts", "class_sums")


def _sums(outputs: Outputs) -> Tensor:
    """Sum of the features over the images, float64, (features,); once per batch."""

    def compute() -> Tensor:
        features = outputs.require("features")
        first = features[:PROBE]
        centre = first.mean(dim=0)
        spread = (first - centre).square().mean().sqrt()
        total = torch.zeros(len(centre), dtype=torch.float64, device=features.device)
        # To convert every feature to float64 first would take twice as long.
        if bool(centre.abs().amax() < NEAR * spread):
            for rows in torch.split(features, ROWS):
                total += rows.sum(dim=0)
        else:
            total += centre.double() * len(features)
            for rows in torch.split(features, ROWS):
                total += (rows - centre).sum(dim=0)
        # Features near the end of float32 overflow in a sum that float64 holds.
        return total if all_finite(total) else features.sum(dim=0, dtype=torch.float64)

    return outputs.memo("feature_sums", compute)
