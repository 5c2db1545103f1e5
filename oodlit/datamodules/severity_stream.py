"""Pools of OOD classes, from which levels of severity are made: any folder or shards with classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from oodlit.datamodules.folders import folder_stream
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published import holds_shards
from oodlit.datamodules.severity_split import TEST_SHARE, FolderSplit, Part, part_of, read_split
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.stream import Stream
from oodlit.errors import InvalidArgumentError
from oodlit.roles import Role


@dataclass(frozen=True)
class PoolSplit:
    """Which images of a pool estimate how hard their class is, and which are test images.

    An image's part follows from its key alone, whatever other images there are.

    Args:
        test_share: Share of test images, 0 < share < 1, by the hash of the key. Default 0.25, as published.
        parts: In place of the share, the part of every file by its key or path; others are used for neither.
        source: What `parts` was read from, for messages.

    Raises:
        InvalidArgumentError: The share is out of its range.

    Example:
        >>> split = PoolSplit(parts={"sea/1.png": Part.TEST}, source="split.csv")
        >>> split("sea/1%2Epng"), split("sea/2%2Epng"), str(split), str(PoolSplit())
        (<Part.TEST: 'test'>, None, 'as listed in split.csv', 'test share 0.25 by key')
    """

    test_share: float = TEST_SHARE
    parts: Mapping[str, Part] | None = field(default=None, repr=False)
    source: str = ""

    def __post_init__(self) -> None:
        """Check the share."""
        part_of("", self.test_share)

    def __call__(self, key: str) -> Part | None:
        """The part of the image with this key within its set; None = it is used for neither."""
        if self.parts is None:
            return part_of(key, self.test_share)
        return self.parts.get(key) or self.parts.get(unescape_key(key))

    def __str__(self) -> str:
        """As results describe it."""
        return f"test share {self.test_share} by key" if self.parts is None else f"as listed in {self.source}"


def severity_pool(
    data: str | Path | Stream,
    *,
    name: str | None = None,
    test_share: float | None = None,
    split: str | Path | None = None,
) -> Stream:
    """Any OOD set with classes as a pool: a run sorts its classes by severity and evaluates levels of them.

    Args:
        data: A folder of class folders, a folder of shards written with the role "ood", or a stream with that role.
        name: Name of the stream; None (default) = that of the data.
        test_share: Share of test images, by the hash of their keys. None (default) = 0.25, or for shards that were
            packed as a pool (`oodlit shards build imagenet21k`) the parts that they were packed in.
        split: In place of a share, a list of two columns: file (or key) and part, "estimation" or "test". Images that
            it does not list are not used, and counted in the results.

    Raises:
        InvalidArgumentError: Both a share and a split are given, the share is out of its range, or the stream has
            another role or no classes.
        DataError: The data or the list cannot be read.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> from oodlit.datamodules.stream import Sample
        >>> source = MemorySource([Sample(str(i), b"", group=i % 2) for i in range(8)])
        >>> pool = severity_pool(Stream("seas", Role.OOD, source, ("red", "dead")), test_share=0.5)
        >>> str(pool.role), str(pool.split)
        ('pool', 'test share 0.5 by key')
    """
    if test_share is not None and split is not None:
        raise InvalidArgumentError(f"severity_pool: test_share={test_share} and split={str(split)!r}; give one of them")
    if isinstance(data, Stream):
        stream = data
    else:
        stream = shard_stream(data, role=Role.OOD) if holds_shards(Path(data)) else folder_stream(data, role=Role.OOD)
    if stream.role is not Role.OOD or not stream.class_names:
        raise InvalidArgumentError(
            f"severity_pool: {stream.name!r} has the role {stream.role} and {len(stream.class_names)} classes;"
            " an OOD set with classes is needed"
        )
    parts: PoolSplit | FolderSplit = PoolSplit(TEST_SHARE if test_share is None else test_share)
    if getattr(getattr(stream.source, "info", None), "role", None) is Role.POOL and test_share is None:
        parts = FolderSplit()  # packed with a fixed split
    if split is not None:
        parts = PoolSplit(parts=read_split(split), source=Path(split).name)
    return replace(stream, name=name or stream.name, role=Role.POOL, split=parts)
