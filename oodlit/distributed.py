"""Collectives over CPU tensors that also work for processes without any data."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from oodlit.peers import named_cause

T = TypeVar("T")
Group: TypeAlias = "dist.ProcessGroup | None"


@named_cause()
def cpu_group() -> Group:
    """A group of all processes that moves CPU tensors (None: the default group already does, or there is one process).

    Every process must call it at the same point. Large banks live on the CPU, where NCCL cannot reach them.
    """
    if not is_distributed() or dist.get_backend() == "gloo":
        return None
    group = dist.new_group(backend="gloo")
    assert not isinstance(group, int)  # only processes outside the group get a number
    return group


@named_cause()
def gather_objects(group: Group, value: T) -> list[T]:
    """`value` of every process, in the order of ranks; [value] in a single process. For small plain values only."""
    if not is_distributed():
        return [value]
    gathered: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered  # type: ignore[return-value]  # every rank filled its place


@named_cause()
def all_sum(group: Group, value: Tensor) -> Tensor:
    """Sum of `value` over all processes; shapes must agree. Returned on the device of `value`."""
    if not is_distributed():
        return value
    total = value.detach().to("cpu", copy=True)
    dist.all_reduce(total, group=group)
    return total.to(value.device)


@named_cause()
def gather_rows(group: Group, value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows of all processes, one after the other, as CPU tensor; process r has sizes[r] rows.

    The processes broadcast one after the other, so that no more memory is taken than the result needs.
    """
    if not is_distributed():
        return value
    result = torch.empty((sum(sizes), *value.shape[1:]), dtype=value.dtype)
    start = 0
    for rank, size in enumerate(sizes):
        part = result[start : start + size]
        if size and rank == dist.get_rank(group):
            part.copy_(value)
        if size:
            source = rank if group is None else dist.get_global_rank(group, rank)
            dist.broadcast(part, src=source, group=group)
        start += size
    return result


def is_distributed() -> bool:
    """Whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
