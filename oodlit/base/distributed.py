"""Collectives over CPU tensors that also work for processes without any data."""

import logging
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from oodlit.base.peers import named_cause

T = TypeVar("T")
Group: TypeAlias = "dist.ProcessGroup | None"
_log = logging.getLogger("oodlit.base.distributed")


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
def gather_rows(group: Group, value: Tensor, sizes: Sequence[int], *, is_shared: bool = False) -> Tensor:
    """Rows of all processes, one after the other, as CPU tensor; process r has sizes[r] rows.

    The processes broadcast one after the other, so that no more memory is taken than the result needs.

    Args:
        group: The processes.
        value: Rows of this one.
        sizes: Number of rows of each.
        is_shared: Whether the processes of a machine hold the result in the same memory. Each of them writes all of
            it, the same bytes, and nobody may write to it afterwards.
    """
    if not is_distributed():
        return value
    shape = (sum(sizes), *value.shape[1:])
    result = shared_empty(group, shape, value.dtype) if is_shared else torch.empty(shape, dtype=value.dtype)
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


def shared_empty(group: Group, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A CPU tensor in memory that the processes of a machine share, where there is room for it; else of one's own.

    All processes of the group call it. The memory goes back to the system when the last of them ends or drops it.
    """
    hosts = gather_objects(group, socket.gethostname())
    rank = dist.get_rank(group)
    leader, count = hosts.index(hosts[rank]), math.prod(shape)
    size, is_first = count * dtype.itemsize, rank == leader and hosts.count(hosts[rank]) > 1
    reserved = _reserve(size) if is_first else None
    if is_first and reserved is None:
        _log.warning("no room for %.1f GB that processes share: each of them holds a copy", size / 1e9)
    try:
        path = gather_objects(group, str(reserved or ""))[leader]
        if path and Path(path).is_file():  # containers of one name may have temporary folders of their own
            tensor = torch.from_file(path, shared=True, size=count, dtype=dtype).view(*shape)
        else:
            tensor = torch.empty(tuple(shape), dtype=dtype)
        gather_objects(group, None)  # all have opened it: the name is needed no more
    finally:
        if reserved is not None:
            reserved.unlink()
    return tensor


def _reserve(size: int) -> Path | None:
    """A new file of `size` bytes: in memory, or else in a temporary folder, where the system keeps it in memory too."""
    for place in (partial(str, "/dev/shm"), tempfile.gettempdir):
        with suppress(OSError):  # there is no such folder, it can only be read, a quota, or somebody was faster
            folder = place()
            if hasattr(os, "posix_fallocate") and shutil.disk_usage(folder).free > size:
                return _file_of(size, folder)
    return None


def _file_of(size: int, folder: str) -> Path:
    descriptor, path = tempfile.mkstemp(prefix="oodlit-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        Path(path).unlink()
        raise
    finally:
        os.close(descriptor)
    return Path(path)


def is_distributed() -> bool:
    """Whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
