"""Small sets that the package makes itself, written as shards once and read back from there."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from oodlit.datamodules.shards.manifest import ShardInfo, write_info
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.shards.writer import Entry, write_shard
from oodlit.datamodules.stream import Stream
from oodlit.roles import Role

__all__ = ["SmallSet", "packed_streams"]


@dataclass(frozen=True)
class SmallSet:
    """A set that fits into memory, with what its manifest says."""

    name: str
    role: Role
    entries: Sequence[Entry]
    class_names: tuple[str, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


def packed_streams(folder: Path, sets: Sequence[SmallSet], *, shard_size: int = 512) -> list[Stream]:
    """Write the sets below `folder`, one folder each, unless they are there; gives their streams.

    Several processes may do this at the same time: one writes, the others wait. A folder is there completely or not
    at all.

    Args:
        folder: Where the folders of the sets lie.
        sets: The sets.
        shard_size: Images per shard, >= 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for small in sets:
        target = folder / small.name
        with FileLock(folder / f".{small.name}.lock"):
            for leftover in folder.glob(f".{small.name}.*.staging"):  # of a run that was killed
                shutil.rmtree(leftover)
            if not target.is_dir():
                _write(target, small, shard_size)
    return [shard_stream(folder / small.name) for small in sets]


def _write(target: Path, small: SmallSet, shard_size: int) -> None:
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{small.name}.", suffix=".staging"))
    try:
        records = [
            write_shard(staging / f"{small.name}-{number:04d}.tar", small.entries[start : start + shard_size])
            for number, start in enumerate(range(0, len(small.entries), shard_size))
        ]
        info = ShardInfo(
            split=small.name,
            shards=tuple(records),
            name=small.name,
            role=small.role,
            class_names=small.class_names,
            label_counts=_counts([entry.label for entry in small.entries]),
            group_counts=_counts([entry.group for entry in small.entries]),
            extra=small.extra,
        )
        write_info(staging, info)
        staging.chmod(0o777 & ~_umask())
        staging.replace(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _counts(values: list[int]) -> dict[int, int]:
    return {value: values.count(value) for value in sorted(set(values)) if value >= 0}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
