"""What statistics share whose state is sums over the training images."""

from collections.abc import Mapping
from typing import TypeVar, final

import torch
from torch import Tensor

from oodlit.checks import check_same_shape
from oodlit.detectors.statistics.base import Statistic
from oodlit.distributed import Group, all_sum, gather_objects

S = TypeVar("S", bound="Sums")


class Sums(Statistic):
    """A statistic whose states are sums over images, so that those of several parts of a training set add up.

    Args:
        states: The states by name: empty tensors, whose shapes `allocate` sets with the first batch, or scalars.
    """

    def __init__(self, **states: Tensor) -> None:
        super().__init__(sync_on_compute=False)
        for name, state in states.items():
            self.add_state(name, state, dist_reduce_fx=None)

    @final
    def merge(self: S, other: S) -> None:
        """Add what `other` has summed."""
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
        # A process without a batch has empty states, whose shapes come first.
        self.allocate(max(shapes, key=lambda shape: tuple(shape.values())), next(iter(self._states())).device)
        for name in self._defaults:
            setattr(self, name, all_sum(group, getattr(self, name)))

    @final
    def allocate(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Give the states their shapes and their device, unless an earlier batch has done it."""
        if any(state.ndim and state.numel() for state in self._states()):
            return
        for name, shape in shapes.items():
            state: Tensor = getattr(self, name)
            setattr(self, name, state.new_zeros(shape, device=device) if state.ndim else state.to(device))

    def _states(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._defaults]

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(getattr(self, name).shape) for name in self._defaults}
