"""Write small generated sets as shards once, and read them from there."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oodlit.base.atomic import lock, move, temporary_folder
from oodlit.base.roles import Role
from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.generated.unit_test_source import UnitTestListing, UnitTestSource
from oodlit.datamodules.shards.build import build_shards
from oodlit.datamodules.shards.manifest import INFO_NAMES
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.shards.writer import Entry
from oodlit.datamodules.stream import Stream


@dataclass(frozen=True)
class SmallSet:
    """A set in memory, with the facts for its manifest."""

    name: str
    role: Role
    entries: Sequence[Entry]
    class_names: tuple[str, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


def unit_test_set(source: UnitTestSource) -> SmallSet:
    """The set "unit_tests" with the images of a source as PNG."""
    extra = {"format": "PNG", "seed": source.seed}
    return SmallSet("unit_tests", Role.UNIT_TEST, list(UnitTestListing(source)), tuple(UNIT_TESTS), extra)


def root_or_temporary(root: str | Path | None, owner: object) -> Path:
    """Return `root` or, if it is None, a temporary folder that is removed together with `owner`."""
    if root is None:
        root = tempfile.mkdtemp(prefix="oodlit-")
        weakref.finalize(owner, shutil.rmtree, root, ignore_errors=True)  # unlike __del__, not run by pickled copies
    return Path(root)


def packed_streams(folder: Path, sets: Sequence[SmallSet], *, shard_size: int = 512) -> list[Stream]:
    """Write the sets below `folder`, one folder each, unless they exist; return their streams.

    If several processes do this at the same time, one writes and the others wait. Folders are created atomically.

    Args:
        folder: Parent of the folders.
        sets: The sets.
        shard_size: Images per shard, >= 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for small in sets:
        target = folder / small.name
        with lock(folder / f".{small.name}.lock"):
            if target.is_dir():
                continue
            with temporary_folder(target) as temporary:
                build_shards(out=temporary, shard_size=shard_size, check="none", **vars(small))
                move(temporary, target, last=INFO_NAMES[0])
    return [shard_stream(folder / small.name) for small in sets]
