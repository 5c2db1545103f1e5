"""Pools of OOD classes, from which levels of severity are made: any folder or shards with classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from oodlit.datamodules.folders import folder_stream
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published import holds_shards
from oodlit.datamodules.severity.split import TEST_SHARE, FolderSplit, Part, part_of, read_split
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError, InvalidArgumentError
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

    @property
    def num_listed(self) -> int:
        """Number of images that a list gives a part; 0 without a list."""
        return len(self.parts or ())

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
        DataError: The data or the list cannot be read, or a class has no estimation or no test images.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> from oodlit.datamodules.stream import Sample
        >>> source = MemorySource([Sample(str(i), b"", group=i % 2) for i in range(20)])
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
    info = getattr(stream.source, "info", None)
    if info is not None and info.role is Role.POOL and test_share is None:  # packed with a fixed split
        parts = FolderSplit(str(info.extra.get("release") or ""))
    if split is not None:
        parts = PoolSplit(parts=read_split(split), source=Path(split).name)
    _check_parts(stream, parts)
    return replace(stream, name=name or stream.name, role=Role.POOL, split=parts)


def _check_parts(stream: Stream, split: PoolSplit | FolderSplit) -> None:
    """Refuse a class without images of a part, where the source knows its keys; a run says it at its end otherwise."""
    keys, groups = getattr(stream.source, "keys", None), getattr(stream.source, "groups", None)
    if isinstance(stream.source, MemorySource):
        keys = [sample.key for sample in stream.source.samples]
        groups = [sample.group for sample in stream.source.samples]
    if keys is None or groups is None:
        return
    found = {(group, split(key)) for key, group in zip(keys, groups, strict=True)}
    if isinstance(split, PoolSplit) and split.parts and keys and {part for _, part in found} == {None}:
        raise DataError(
            f"pool {stream.name!r}: {split.source} lists none of its images; the first that it lists is"
            f" {next(iter(split.parts))!r}, the first of the pool {unescape_key(keys[0])!r} - paths begin in the"
            " folder of the pool"
        )
    for part in Part:
        if empty := [name for group, name in enumerate(stream.class_names) if (group, part) not in found]:
            raise DataError(
                f"pool {stream.name!r}: {len(empty)} of {len(stream.class_names)} classes have no {part} images, first"
                f" {empty[0]!r}; every class needs images of both kinds, estimation and test ({split}) - add some, give"
                " another test_share or split, or leave the class out"
            )
