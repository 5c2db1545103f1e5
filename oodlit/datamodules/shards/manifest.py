"""The manifest of a folder of shards, `_info.json`: timm's layout with additional facts per split."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from oodlit.base.atomic import lock, write_text
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import parse_json, read_json
from oodlit.base.roles import Role
from oodlit.datamodules.keys import repeated

INFO_NAMES = ("_info.json", "info.json")
"""File names of a manifest, in the order in which timm looks for them."""
MAX_MANIFEST_BYTES = 2**26
"""Largest manifest, which is read into memory."""
_HINT = "; restore the manifest, or remove it to count the samples again"
WORK_FOLDER = ".build"
"""Folder for the notes of a build: `<shard>.json` for every finished shard that is not yet in the manifest."""


@dataclass(frozen=True)
class ShardRecord:
    """One shard in the manifest. None = unknown."""

    file: str
    samples: int
    size: int | None = None
    """Size of the file in bytes."""
    sha256: str | None = None
    listing: str | None = None
    """Digest of the entries (key, label, group) that the shard was built from."""


@dataclass(frozen=True)
class ShardInfo:
    """One split of a set of shards.

    Args:
        split: Name of the split, such as "train" or "validation".
        shards: The shards in order.
        name: Name of the data set; empty if unknown.
        role: Role of the set; None if unknown.
        class_names: Names by index: of labels for TRAIN and ID, of groups for other roles.
        label_counts: Samples per label >= 0; empty if unknown.
        group_counts: Samples per group >= 0; empty if unknown.
        extra: Additional facts, such as license and source.
        label_names: Names of the labels of a SHIFT set by index; empty if unknown.
    """

    split: str
    shards: tuple[ShardRecord, ...]
    name: str = ""
    role: Role | None = None
    class_names: tuple[str, ...] = ()
    label_counts: Mapping[int, int] = field(default_factory=dict)
    group_counts: Mapping[int, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    label_names: tuple[str, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def size(self) -> int | None:
        """Bytes of all shards; None if unknown."""
        sizes = [shard.size for shard in self.shards]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def to_json(self) -> dict[str, Any]:
        """Entry of this split in `_info.json`."""
        entry = _SplitEntry(
            name=self.split,
            num_samples=self.num_samples,
            filenames=[shard.file for shard in self.shards],
            shard_lengths=[shard.samples for shard in self.shards],
            dataset=self.name,
            role=self.role,
            sizes=[shard.size for shard in self.shards],
            sha256=[shard.sha256 for shard in self.shards],
            listings=[shard.listing for shard in self.shards],
            class_names=list(self.class_names),
            label_counts={str(label): count for label, count in sorted(self.label_counts.items())},
            group_counts={str(group): count for group, count in sorted(self.group_counts.items())},
            extra=dict(self.extra),
            label_names=list(self.label_names) or msgspec.UNSET,
        )
        return dict(msgspec.to_builtins(entry))


class _SplitEntry(msgspec.Struct, kw_only=True):
    """Entry of a split in `_info.json`. The first five fields are timm's; None or a missing field = unknown."""

    name: object = ""
    num_samples: int | None = None
    filenames: list[str]
    shard_lengths: list[Annotated[int, msgspec.Meta(ge=0)]]
    alt_label: object = ""
    dataset: str | None = None
    role: Role | None = None
    sizes: list[int | None] | None = None
    sha256: list[str | None] | None = None
    listings: list[str | None] | None = None
    class_names: list[str] | None = None
    label_counts: dict[str, int] | None = None
    group_counts: dict[str, int] | None = None
    extra: dict[str, Any] | None = None
    label_names: list[str] | msgspec.UnsetType | None = msgspec.UNSET


class _ManifestFile(msgspec.Struct):
    """Content of `_info.json`."""

    splits: dict[str, _SplitEntry]


def read_info(directory: str | Path) -> dict[str, ShardInfo]:
    """Read all splits of the manifest in `directory`; empty if there is no manifest.

    Raises:
        DataError: The manifest is malformed.
    """
    for name in INFO_NAMES:
        path = Path(directory) / name
        if path.is_file():
            return _infos(read_json(path, _ManifestFile, max_bytes=MAX_MANIFEST_BYTES, hint=_HINT), str(path))
    return {}


def parse_info(data: bytes, where: str) -> dict[str, ShardInfo]:
    """Parse the splits of a manifest; `where` names it in messages.

    Raises:
        DataError: The manifest is malformed or inconsistent.
    """
    return _infos(parse_json(data, _ManifestFile, where=where, hint=_HINT), where)


def _infos(manifest: _ManifestFile, where: str) -> dict[str, ShardInfo]:
    splits = manifest.splits
    if not splits:
        raise DataError(f"{where}: the manifest has no splits{_HINT}")
    try:
        return {name: _info(name, entry) for name, entry in splits.items()}
    except ValueError as error:
        raise DataError(f"{where}: {error}{_HINT}") from error


def _info(split: str, entry: _SplitEntry) -> ShardInfo:
    files = entry.filenames
    _check_files(split, files)
    optional = (values or [None] * len(files) for values in (entry.sizes, entry.sha256, entry.listings))
    columns: list[Sequence[Any]] = [files, entry.shard_lengths, *optional]
    if len({len(column) for column in columns}) > 1:
        numbers = ", ".join(str(len(column)) for column in columns)
        raise ValueError(
            f"split {split!r}: expected filenames, shard_lengths, sizes, sha256 and listings to have the same length,"
            f" got the lengths {numbers}"
        )
    info = ShardInfo(
        split=split,
        shards=tuple(starmap(ShardRecord, zip(*columns, strict=True))),
        name=entry.dataset or "",
        role=entry.role,
        class_names=tuple(entry.class_names or ()),
        label_counts={int(label): count for label, count in (entry.label_counts or {}).items()},
        group_counts={int(group): count for group, count in (entry.group_counts or {}).items()},
        extra=entry.extra or {},
        label_names=tuple(entry.label_names or ()),
    )
    if entry.num_samples not in (None, info.num_samples):
        raise ValueError(
            f"split {split!r} has num_samples {entry.num_samples}, but its shard lengths add up to {info.num_samples}"
        )
    return info


def _check_files(split: str, files: Sequence[str]) -> None:
    """Check that every shard has its own file name within the folder."""
    if twice := repeated(files):
        raise ValueError(f"split {split!r}: file name {twice[0]!r} is listed twice")
    for file in files:
        if PurePosixPath(file).is_absolute() or {"..", ""} & set(file.split("/")):
            raise ValueError(f"split {split!r}: expected a relative path without '..' or empty parts, got {file!r}")
        if "::" in file or ":" in file.split("/")[0]:
            raise ValueError(f"split {split!r}: expected a path without ':', which drives and URLs have, got {file!r}")


def select_split(infos: Mapping[str, ShardInfo], split: str | None, where: str) -> ShardInfo:
    """Return the requested split, or the only one.

    Raises:
        InvalidArgumentError: The split does not exist, or is not given and there are several.
    """
    if split is None and len(infos) == 1:
        return next(iter(infos.values()))
    if split is None or split not in infos:
        raise InvalidArgumentError(f"{where}: expected split to be one of {', '.join(sorted(infos))}; got {split!r}")
    return infos[split]


def write_info(directory: str | Path, info: ShardInfo) -> None:
    """Atomically add or replace one split in `_info.json`."""
    path = Path(directory) / INFO_NAMES[0]
    with lock(path.with_name(".info.lock")):
        splits = read_info(directory) | {info.split: info}
        text = json.dumps({"splits": {name: splits[name].to_json() for name in sorted(splits)}}, indent=1)
        write_text(path, text + "\n")


def local_info(directory: str | Path) -> dict[str, ShardInfo]:
    """Read the manifest as `read_info`, and refuse the shards of an unfinished build, which are incomplete.

    Raises:
        DataError: There are shards that the manifest does not list yet, or it is malformed.
    """
    infos = read_info(directory)
    listed = {record.file for info in infos.values() for record in info.shards}
    notes = sorted(path.name.removesuffix(".json") for path in (Path(directory) / WORK_FOLDER).glob("*.tar.json"))
    if waiting := [file for file in notes if file not in listed and (Path(directory) / file).is_file()]:
        raise DataError(
            f"{directory}: a build has not finished, so {len(waiting)} shards (first: {waiting[0]!r}) are not in the"
            " manifest. Wait for the build, run it again to resume it, or remove these shards"
        )
    return infos
