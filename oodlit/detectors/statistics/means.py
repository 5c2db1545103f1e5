"""Means of features, over all images and per true or predicted class, and of the softmax."""

import torch
from torch import Tensor

from oodlit.base.checks import all_finite
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs
from oodlit.detectors.statistics.class_labels import train_labels
from oodlit.detectors.statistics.sums import PredictedSums, Sums

ROWS = 2048
"""Images to add at a time, so that they fit in the cache."""
PROBE = 32
"""Images of a batch used to estimate how far from zero the features are."""
NEAR = 8.0
"""Largest mean of a feature, relative to the spread, for which features are added unchanged."""


class FeatureMean(Sums):
    """Mean feature of all training images; requires no labels. Memory: D doubles.

    Features are added in their own dtype, at least float32, where torch adds in cascades: the error is below 1e-6 of
    their spread. If the mean is far from zero, their differences to a center are added instead. Everything else is
    float64.
    """

    needs = frozenset({"features"})
    rows_at_a_time = None
    counted_by = "count"
    count: Tensor
    sum: Tensor

    def __init__(self) -> None:
        super().__init__(count=torch.zeros((), dtype=torch.int64), sum=torch.zeros(0, dtype=torch.float64))

    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch."""
        features = outputs.require("features")
        self.allocate({"count": (), "sum": (features.shape[1],)}, features.device)
        if features.shape[1] != len(self.sum):
            raise InvalidArgumentError(
                f"{type(self).__name__}: expected {len(self.sum)} features per image as in earlier batches, got"
                f" {features.shape[1]}"
            )
        self.sum.add_(self.sums_of(outputs))
        self.count.add_(len(features))

    def sums_of(self, outputs: Outputs) -> Tensor:
        """Return the sum over the images of one batch, float64, shape (features,)."""
        return _sums(outputs)

    def finite_proxy(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return the sums of the features, which are not finite if a feature is not."""
        return {"features": _sums(outputs)}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state."""
        return 8 * width

    @property
    def mean(self) -> Tensor:
        """Mean feature, float64, shape (features,)."""
        return self.sum / self.count


class CorrectMeans(Sums):
    """Mean feature per class, over its correctly classified images and over all of them, in float64.

    Memory: 2 x C x D doubles.
    """

    needs = frozenset({"features", "logits", "labels"})
    counted_by = "seen"
    seen: Tensor
    right_counts: Tensor
    right_sums: Tensor
    class_counts: Tensor
    class_sums: Tensor

    def __init__(self) -> None:
        counts, sums = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0, dtype=torch.float64)
        super().__init__(
            seen=torch.zeros((), dtype=torch.int64),
            right_counts=counts,
            right_sums=sums,
            class_counts=counts,
            class_sums=sums,
        )

    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch."""
        num_classes = outputs.require("logits").shape[1]
        features, labels = outputs.require("features").double(), train_labels(outputs, num_classes)
        of_counts, of_sums = (num_classes,), (num_classes, features.shape[1])
        shapes = {"right_counts": of_counts, "right_sums": of_sums, "class_counts": of_counts, "class_sums": of_sums}
        self.allocate({"seen": (), **shapes}, features.device)
        right = outputs.predictions == labels
        self.seen += len(labels)
        self.right_counts += torch.bincount(labels[right], minlength=num_classes)
        self.right_sums.index_add_(0, labels[right], features[right])
        self.class_counts += torch.bincount(labels, minlength=num_classes)
        self.class_sums.index_add_(0, labels, features)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state."""
        return 16 * num_classes * width

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


class PredictedMeans(PredictedSums):
    """Mean feature of the images predicted as each class, in float64; requires no labels.

    Memory: C x D doubles.
    """

    needs = frozenset({"features", "logits"})
    source = "features"

    @staticmethod
    def rows_of(values: Tensor) -> Tensor:
        """The features."""
        return values.double()

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state."""
        return 8 * num_classes * width

    @property
    def mean(self) -> Tensor:
        """Mean feature of all images, (features,)."""
        return self.class_sums.sum(dim=0) / self.class_counts.sum()


class ClassProbabilities(PredictedSums):
    """Mean softmax of the training images predicted as class k, in float64.

    The softmax is computed in float64: means of 1e-60 and less occur and matter (KL matching). Memory: C x C doubles.
    """

    needs = frozenset({"logits"})
    source = "logits"

    @staticmethod
    def rows_of(values: Tensor) -> Tensor:
        """The softmax."""
        return values.double().softmax(dim=1)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state, and of the matrices that KL matching derives from it."""
        return 6 * 8 * num_classes * num_classes


class RankMeans(FeatureMean):
    """Mean of the r-th smallest feature of an image over all training images; requires no labels. Memory: D doubles."""

    def sums_of(self, outputs: Outputs) -> Tensor:
        """Return the sum of the sorted features over the images of one batch, float64, shape (features,)."""
        parts = torch.split(outputs.require("features"), ROWS)
        return torch.stack([part.sort(dim=1).values.sum(dim=0, dtype=torch.float64) for part in parts]).sum(dim=0)

    def finite_proxy(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return nothing: sorting moves values that are not finite."""
        return {}

    @property
    def means(self) -> Tensor:
        """Mean of the r-th smallest feature, ascending, float64, shape (features,)."""
        return self.sum / self.count


def _sums(outputs: Outputs) -> Tensor:
    """Return the sum of the features over the images, float64, (features,), once per batch."""

    def compute() -> Tensor:
        features = outputs.require("features")
        first = features[:PROBE]
        center = first.mean(dim=0)
        spread = (first - center).square().mean().sqrt()
        total = torch.zeros(len(center), dtype=torch.float64, device=features.device)
        # Converting every feature to float64 first would take twice as long.
        if bool(center.abs().amax() < NEAR * spread):
            for rows in torch.split(features, ROWS):
                total += rows.sum(dim=0)
        else:
            total += center.double() * len(features)
            for rows in torch.split(features, ROWS):
                total += (rows - center).sum(dim=0)
        # Features near the limit of float32 overflow in a sum that fits in float64.
        return total if all_finite(total) else features.sum(dim=0, dtype=torch.float64)

    return outputs.memo("feature_sums", compute)
