"""Collective operations on CPU tensors that also work for processes without data."""

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

from oodlit.base.processes.peers import named_cause

T = TypeVar("T")
Group: TypeAlias = "dist.ProcessGroup | None"
_log = logging.getLogger("oodlit.base.processes.distributed")


@named_cause()
def cpu_group() -> Group:
    """Create a group of all processes for CPU tensors (None: the default group suffices, or there is one process).

    Every process must call it at the same point. Large banks are on the CPU, where NCCL cannot reach them.
    """
    if not is_distributed() or dist.get_backend() == "gloo":
        return None
    group = dist.new_group(backend="gloo")
    assert not isinstance(group, int)  # only processes outside the group get a number
    return group


@named_cause()
def gather_objects(group: Group, value: T) -> list[T]:
    """Return `value` of every process in the order of ranks; [value] in a single process. For small values only."""
    if not is_distributed():
        return [value]
    gathered: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered  # type: ignore[return-value]  # every rank filled its entry


@named_cause()
def all_sum(group: Group, value: Tensor) -> Tensor:
    """Sum `value` over all processes; shapes must agree. Returned on the device of `value`."""
    if not is_distributed():
        return value
    total = value.detach().to("cpu", copy=True)
    dist.all_reduce(total, group=group)
    return total.to(value.device)


@named_cause()
def gather_rows(group: Group, value: Tensor, sizes: Sequence[int], *, is_shared: bool = False) -> Tensor:
    """Concatenate the rows of all processes as a CPU tensor; process r has sizes[r] rows.

    The processes broadcast in turn, so that no memory beyond the result is used.

    Args:
        group: The processes.
        value: Rows of this process.
        sizes: Number of rows of each process.
        is_shared: Whether the processes of a machine keep the result in shared memory. Each of them writes all of it
            with the same bytes, and none may write to it afterwards.
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
            dist.broadcast(part, src=rank if group is None else dist.get_global_rank(group, rank), group=group)
        start += size
    return result


def shared_empty(group: Group, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Create a CPU tensor in memory shared by the processes of a machine, or in private memory if there is no room.

    All processes of the group call it. The memory is freed when the last of them ends or drops it.
    """
    hosts = gather_objects(group, socket.gethostname())
    rank = dist.get_rank(group)
    leader, count = hosts.index(hosts[rank]), math.prod(shape)
    size, is_first = count * dtype.itemsize, rank == leader and hosts.count(hosts[rank]) > 1
    reserved = _reserve(size) if is_first else None
    if is_first and reserved is None:
        _log.warning("not enough shared memory for %.1f GB of data; each process keeps a copy of the data", size / 1e9)
    try:
        path = gather_objects(group, str(reserved or ""))[leader]
        if path and Path(path).is_file():  # containers with equal names may have separate temporary folders
            tensor = torch.from_file(path, shared=True, size=count, dtype=dtype).view(*shape)
        else:
            tensor = torch.empty(tuple(shape), dtype=dtype)
        gather_objects(group, None)  # all have opened it: the name is no longer used
    finally:
        if reserved is not None:
            reserved.unlink()
    return tensor


def _reserve(size: int) -> Path | None:
    """Create a file of `size` bytes in memory, or in a temporary folder, which the system caches in memory too."""
    for place in (partial(str, "/dev/shm"), tempfile.gettempdir):
        with suppress(OSError):  # no such folder, read-only, a quota, or a race with another process
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
    """Return whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
