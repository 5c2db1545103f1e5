"""Pools of OOD classes for severity levels, from any folder or shards with classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.datamodules.folders import folder_stream
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published_sets import holds_shards
from oodlit.datamodules.severity.split import TEST_SHARE, FolderSplit, Part, part_of, read_split
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Stream


@dataclass(frozen=True)
class PoolSplit:
    """Splits a pool into images that estimate how hard their class is, and test images.

    The part of an image only depends on its key.

    Args:
        test_share: Fraction of test images, 0 < test_share < 1, by the hash of the key. Default 0.25, as published.
        parts: Part of every file by key or path, instead of a fraction; other images are not used.
        source: Where `parts` was read from, for messages.

    Raises:
        InvalidArgumentError: The fraction is out of range.

    Example:
        >>> split = PoolSplit(parts={"sea/1.png": Part.TEST}, source="split.csv")
        >>> split("sea/1%2Epng"), split("sea/2%2Epng"), str(split), str(PoolSplit())
        (<Part.TEST: 'test'>, None, 'as listed in split.csv', 'test share 0.25 by key')
    """

    test_share: float = TEST_SHARE
    parts: Mapping[str, Part] | None = field(default=None, repr=False)
    source: str = ""

    def __post_init__(self) -> None:
        """Check the fraction."""
        part_of("", self.test_share)

    def __call__(self, key: str) -> Part | None:
        """Part of the image with this key; None if it is not used."""
        if self.parts is None:
            return part_of(key, self.test_share)
        return self.parts.get(key) or self.parts.get(unescape_key(key))

    @property
    def num_listed(self) -> int:
        """Number of listed images; 0 without a list."""
        return len(self.parts or ())

    def __str__(self) -> str:
        """Description in results."""
        return f"test share {self.test_share} by key" if self.parts is None else f"as listed in {self.source}"


def severity_pool(
    data: str | Path | Stream,
    *,
    name: str | None = None,
    test_share: float | None = None,
    split: str | Path | None = None,
) -> Stream:
    """Use an OOD set with classes as a pool: a run sorts its classes by severity and evaluates severity levels.

    Args:
        data: A folder of class folders, a folder of shards with role "ood", or a stream with that role.
        name: Name of the stream; None (default) = that of the data.
        test_share: Fraction of test images, by the hash of their keys. None (default) = 0.25, or the packed parts of
            shards that were built as a pool (`oodlit shards build imagenet21k`).
        split: A list with two columns instead of a fraction: file (or key), and "estimation" or "test". Images that are
            not listed are not used; results show their number.

    Raises:
        InvalidArgumentError: Both a fraction and a split are given, the fraction is out of range, or the stream has
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
        raise InvalidArgumentError(f"severity_pool: pass test_share={test_share} or split={str(split)!r}, not both")
    if isinstance(data, Stream):
        stream = data
    else:
        stream = shard_stream(data, role=Role.OOD) if holds_shards(Path(data)) else folder_stream(data, role=Role.OOD)
    if stream.role is not Role.OOD or not stream.class_names:
        raise InvalidArgumentError(
            f"severity_pool: expected an OOD set with classes, got {stream.name!r} with role {stream.role} and"
            f" {len(stream.class_names)} classes"
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
    """Check that every class has images of both parts, if the source knows its keys; otherwise a run checks it."""
    keys, groups = getattr(stream.source, "keys", None), getattr(stream.source, "groups", None)
    if isinstance(stream.source, MemorySource):
        keys = [sample.key for sample in stream.source.samples]
        groups = [sample.group for sample in stream.source.samples]
    if keys is None or groups is None:
        return
    found = {(group, split(key)) for key, group in zip(keys, groups, strict=True)}
    if isinstance(split, PoolSplit) and split.parts and keys and {part for _, part in found} == {None}:
        raise DataError(
            f"pool {stream.name!r}: {split.source} lists no image of the pool; paths must be relative to the"
            f" folder of the pool, like {unescape_key(keys[0])!r}, but the list has {next(iter(split.parts))!r}"
        )
    for part in Part:
        if empty := [name for group, name in enumerate(stream.class_names) if (group, part) not in found]:
            raise DataError(
                f"pool {stream.name!r}: expected estimation and test images in every class, got no {part} images in"
                f" {len(empty)} of {len(stream.class_names)} classes (first: {empty[0]!r}; split: {split}). Add images,"
                " pass another test_share or split, or remove such classes"
            )
