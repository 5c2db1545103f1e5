"""Counts, means and covariances of features, or of functions of them, per class and pooled."""

import copyreg
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from oodlit.base.checks import check_same_shape
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs, unit
from oodlit.base.processes.distributed import Group, all_sum, gather_objects
from oodlit.detectors.statistics.class_labels import train_labels
from oodlit.detectors.statistics.statistic import Statistic

ROWS = 512
"""Images whose products are computed at a time, so that their float64 copy fits in the cache."""
PANELS = 8
"""Strips in which products are computed."""


class GeneratedMoments(ABCMeta):
    """Metaclass of generated classes, which are pickled as the call that creates them."""

    made_by: tuple[Callable[..., Any], tuple[Any, ...]]


copyreg.pickle(GeneratedMoments, lambda kind: kind.made_by)


class Moments(Statistic):
    """Counts, means and scatter of rows that a subclass derives from outputs, per class and in total, in float64.

    Every row counts as its difference to a reference of its class, the first image of the class. The products of these
    differences have the size of the within-class scatter: neither a mean far from zero nor distant classes cost digits.
    Memory: D x D + 2 x C x D doubles for any number of images.

    Raises:
        InvalidArgumentError: A training image has no label, or the number of features changes.
    """

    needs = frozenset({"features", "labels"})
    class_counts: Tensor
    references: Tensor
    differences: Tensor
    scatter: Tensor

    def __init__(self) -> None:
        empty = torch.zeros(0, 0, dtype=torch.float64)
        counts = torch.zeros(0, dtype=torch.int64)
        super().__init__(class_counts=counts, references=empty, differences=empty, scatter=empty)

    @staticmethod
    @abstractmethod
    def rows_of(outputs: Outputs) -> Tensor:
        """Return the rows to accumulate, (batch, dimensions); detectors score the same rows."""

    @staticmethod
    def dimensions(width: int) -> int:
        """Return the length of a row for features of a given width."""
        return width

    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch."""
        features, labels = self.rows_of(outputs), train_labels(outputs)
        self._allocate(features.shape[1], int(labels.max()) + 1, features.device)
        if features.shape[1] != self.references.shape[1]:
            raise InvalidArgumentError(
                f"{type(self).__name__}: expected {self.references.shape[1]} features per image as in earlier batches,"
                f" got {features.shape[1]}"
            )
        self._set_references(features, labels)
        self.class_counts += torch.bincount(labels, minlength=len(self.class_counts))
        for rows, of_class in zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True):
            # Reuse one temporary: allocating several MB for every batch is slow.
            centered = self.references.index_select(0, of_class)
            torch.sub(rows, centered, out=centered)
            self.differences.index_add_(0, of_class, centered)
            _add_products(self.scatter, centered)

    def merge(self, other: "Moments") -> None:
        """Add the data of `other`."""
        if other.num_samples == 0:
            return
        self._allocate(other.references.shape[1], len(other.class_counts), other.references.device)
        check_same_shape(self, self.references.shape[1], other.references.shape[1])
        present, counts = other.class_ids, other.class_counts[other.class_ids, None]
        new = present[self.class_counts[present] == 0]
        self.references[new] = other.references[new]
        # Not the difference of class means: far from zero, their rounding would cost digits.
        away = other.references[present] - self.references[present] + other.differences[present] / counts
        self.scatter += other._upper_within()
        _add_products(self.scatter, away * counts.double().sqrt())
        self.differences[present] += away * counts
        self.class_counts[present] += counts[:, 0]

    def synchronize(self, group: Group) -> None:
        """Sum over the processes; the common class means become the references."""
        shapes = gather_objects(group, tuple(self.references.shape))
        if len(shapes) == 1:
            return
        num_classes, width = (max(s[i] for s in shapes) for i in (0, 1))
        self._allocate(width, num_classes, self.references.device)
        upper, counts, means = self._upper_within(), self.class_counts[:, None], self._means()
        self.class_counts = all_sum(group, self.class_counts)
        self.references = all_sum(group, means * counts) / self.class_counts.clamp(min=1)[:, None]
        away = (means - self.references) * counts.double().sqrt()
        self.scatter = all_sum(group, _add_products(upper, away))
        self.differences = torch.zeros_like(self.references)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state, and of the matrices for decomposing it."""
        size = self.dimensions(width)
        return 8 * size * (7 * size + 2 * num_classes)

    @property
    def counts(self) -> Tensor:
        """Images per class, int64, shape (classes,); classes above the largest label seen are absent."""
        return self.class_counts

    @property
    def class_ids(self) -> Tensor:
        """Ids of the classes with at least one image, ascending."""
        return self.class_counts.nonzero().flatten()

    @property
    def class_means(self) -> Tensor:
        """Mean feature of every class in `class_ids`, float64, shape (present classes, features)."""
        return self._means()[self.class_ids]

    @property
    def mean(self) -> Tensor:
        """Mean feature of all images, float64, shape (features,)."""
        share = self.class_counts.double() / self.class_counts.sum()
        return share @ self._means()

    @property
    def total_covariance(self) -> Tensor:
        """(1/N) sum (x - mean)(x - mean)', float64, shape (features, features)."""
        return _symmetric(_add_products(self._upper_within(), self._between()) / self.num_samples)

    @property
    def within_covariance(self) -> Tensor:
        """(1/N) sum (x - mu_y)(x - mu_y)', pooled over classes with equal weight per image."""
        return _symmetric(self._upper_within() / self.num_samples)

    @property
    def variances(self) -> Tensor:
        """Diagonal of `total_covariance`, float64, shape (features,)."""
        return (self._upper_within().diagonal() + self._between().square().sum(dim=0)) / self.num_samples

    @property
    def largest_variance(self) -> float:
        """Largest entry on the diagonal of `total_covariance`."""
        return float(self.variances.max())

    def _means(self) -> Tensor:
        """Class means; zeros for classes without images."""
        return self.references + self.differences / self.class_counts.clamp(min=1)[:, None]

    def _between(self) -> Tensor:
        """Class means relative to the overall mean, times the root of the number of images."""
        return (self._means() - self.mean) * self.class_counts.double().sqrt()[:, None]

    def _upper_within(self) -> Tensor:
        """Sum of (x - mu_y)(x - mu_y)', upper triangle: the scatter around the references, moved to the means."""
        away = self.differences / self.class_counts.clamp(min=1).double().sqrt()[:, None]
        return _add_products(self.scatter.clone(), away, sign=-1)

    def _set_references(self, features: Tensor, labels: Tensor) -> None:
        unseen = self.class_counts[labels] == 0
        if unseen.any():
            rows = unseen.nonzero().flatten()
            first = torch.full_like(self.class_counts, len(labels))
            first.scatter_reduce_(0, labels[rows], rows, "amin")
            new = (first < len(labels)).nonzero().flatten()
            self.references[new] = features[first[new]].double()

    def _allocate(self, width: int, num_classes: int, device: torch.device) -> None:
        if len(self.scatter) == 0:
            self.class_counts = self.class_counts.to(device)
            self.scatter = torch.zeros(width, width, dtype=torch.float64, device=device)
            self.references = torch.zeros(0, width, dtype=torch.float64, device=device)
            self.differences = torch.zeros(0, width, dtype=torch.float64, device=device)
        missing = num_classes - len(self.class_counts)
        if missing > 0:
            pad = torch.nn.functional.pad
            self.class_counts = pad(self.class_counts, (0, missing))
            self.references = pad(self.references, (0, 0, 0, missing))
            self.differences = pad(self.differences, (0, 0, 0, missing))


@final
class ClassMoments(Moments):
    """Moments of the features."""

    @staticmethod
    def rows_of(outputs: Outputs) -> Tensor:
        """The features."""
        return outputs.require("features")


@final
class UnitMoments(Moments):
    """Moments of the features divided by their norm; a zero row stays zero. They do not follow from `ClassMoments`."""

    @staticmethod
    def rows_of(outputs: Outputs) -> Tensor:
        """Unit features in float64, once per batch."""
        return outputs.memo("unit_rows", lambda: unit(outputs.require("features").double()))


@cache
def power_moments(power: float) -> type[Moments]:
    """Return the statistic of features divided by a power of their norm: the same class for equal powers.

    Args:
        power: Exponent of the norm; 0 is `ClassMoments`, 1 is `UnitMoments`.

    Example:
        >>> power_moments(0.5) is power_moments(0.5), power_moments(1.0) is UnitMoments
        (True, True)
    """
    if power in (0, 1):
        return UnitMoments if power else ClassMoments

    def rows_of(outputs: Outputs) -> Tensor:
        def compute() -> Tensor:
            norms = torch.linalg.vector_norm(outputs.require("features").double(), dim=1, keepdim=True)
            norms = norms.where(norms > 0, torch.ones_like(norms))  # a zero row stays zero
            scaled: Tensor = UnitMoments.rows_of(outputs) * norms ** (1 - power)
            return scaled

        rows: Tensor = outputs.memo(("power_rows", power), compute)
        return rows

    kind = {
        "__doc__": "Moments of the features divided by a power of their norm; a zero row stays zero.",
        "__module__": __name__,
        "made_by": (power_moments, (power,)),
        "rows_of": staticmethod(rows_of),
    }
    return GeneratedMoments(f"PowerMoments({power})", (Moments,), kind)  # type: ignore[return-value]


def _add_products(upper: Tensor, rows: Tensor, *, sign: int = 1) -> Tensor:
    """Add the products of `rows` to the upper triangle of a matrix, in place.

    Since the matrix is symmetric, strips from the diagonal to the right suffice, at little more than half the cost.
    """
    width = len(upper)
    for panel in range(PANELS):
        part = slice(width * panel // PANELS, width * (panel + 1) // PANELS)
        upper[part, part.start :].addmm_(rows[:, part].T, rows[:, part.start :], alpha=sign)
    return upper


def _symmetric(upper: Tensor) -> Tensor:
    return upper.triu() + upper.triu(1).T
