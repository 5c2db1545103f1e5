"""Base classes of statistics with sums over training images as their state."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeVar, final

import torch
from torch import Tensor

from oodlit.base.checks import check_same_shape
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, all_sum, gather_objects
from oodlit.detectors.statistics.statistic import Statistic

S = TypeVar("S", bound="Sums")
ROWS = 128
"""Images whose float64 rows are computed at a time: 1 MB for 1000 classes, which fits in the cache. Allocating many MB
for every batch would cost more than the computation."""


class Sums(Statistic):
    """A statistic with states that are sums over images, so that parts of a training set add up.

    States are scalars, or empty tensors whose shapes `allocate` sets with the first batch.
    """

    @final
    def merge(self: S, other: S) -> None:
        """Add the sums of `other`."""
        if other.num_samples == 0:
            return
        shapes = other._state_shapes()
        self.allocate(shapes, next(iter(other._states())).device)
        check_same_shape(self, self._state_shapes(), shapes)
        for own, added in zip(self._states(), other._states(), strict=True):
            own.add_(added)

    @final
    def synchronize(self, group: Group) -> None:
        """Sum over the processes."""
        shapes = gather_objects(group, self._state_shapes())
        if len(shapes) == 1:
            return
        # A process without batches has empty states, whose shapes come first.
        self.allocate(max(shapes, key=lambda shape: tuple(shape.values())), next(iter(self._states())).device)
        for name in self._defaults:
            setattr(self, name, all_sum(group, getattr(self, name)))

    @final
    def allocate(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Set shapes and device of the states, unless an earlier batch did."""
        if any(state.ndim and state.numel() for state in self._states()):
            return
        for name, shape in shapes.items():
            state: Tensor = getattr(self, name)
            setattr(self, name, state.new_zeros(shape, device=device) if state.ndim else state.to(device))

    def _states(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._defaults]

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(getattr(self, name).shape) for name in self._defaults}


class PredictedSums(Sums):
    """Sums of a row per image over the images predicted as each class, in float64."""

    class_counts: Tensor
    class_sums: Tensor

    def __init__(self) -> None:
        super().__init__(
            class_counts=torch.zeros(0, dtype=torch.int64), class_sums=torch.zeros(0, 0, dtype=torch.float64)
        )

    source: ClassVar[str]
    """The field of `Outputs` from which rows are computed."""

    @staticmethod
    @abstractmethod
    def rows_of(values: Tensor) -> Tensor:
        """Compute rows (images, columns), float64, from the values in `source`."""

    @final
    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch."""
        values, classes = outputs.require(self.source), outputs.predictions
        num_classes = outputs.require("logits").shape[1]
        self.allocate({"class_counts": (num_classes,), "class_sums": (num_classes, values.shape[1])}, values.device)
        self.class_counts += torch.bincount(classes, minlength=num_classes)
        for part, of_class in zip(torch.split(values, ROWS), torch.split(classes, ROWS), strict=True):
            self.class_sums.index_add_(0, of_class, self.rows_of(part))

    @property
    def counts(self) -> Tensor:
        """Images predicted as each class, int64, shape (classes,)."""
        return self.class_counts

    @property
    def means(self) -> Tensor:
        """Mean row per predicted class, (classes, columns); rows of never predicted classes are NaN."""
        return self.class_sums / self.class_counts[:, None]
