"""The manifest of a folder of shards, `_info.json`: timm's layout with additional facts per split."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import Any

from oodlit.base.atomic import lock, write_text
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role

INFO_NAMES = ("_info.json", "info.json")
"""File names of a manifest, in the order in which timm looks for them."""
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
        """Entry of this split in `_info.json`; the first five fields are timm's."""
        return {
            "name": self.split,
            "num_samples": self.num_samples,
            "filenames": [shard.file for shard in self.shards],
            "shard_lengths": [shard.samples for shard in self.shards],
            "alt_label": "",
            "dataset": self.name,
            "role": None if self.role is None else self.role.value,
            "sizes": [shard.size for shard in self.shards],
            "sha256": [shard.sha256 for shard in self.shards],
            "listings": [shard.listing for shard in self.shards],
            "class_names": list(self.class_names),
            "label_counts": {str(k): v for k, v in sorted(self.label_counts.items())},
            "group_counts": {str(k): v for k, v in sorted(self.group_counts.items())},
            "extra": dict(self.extra),
            **({"label_names": list(self.label_names)} if self.label_names else {}),
        }


def read_info(directory: str | Path) -> dict[str, ShardInfo]:
    """Read all splits of the manifest in `directory`; empty if there is no manifest.

    Raises:
        DataError: The manifest is malformed.
    """
    for name in INFO_NAMES:
        path = Path(directory) / name
        if path.is_file():
            return parse_info(path.read_bytes(), str(path))
    return {}


def parse_info(data: bytes, where: str) -> dict[str, ShardInfo]:
    """Parse the splits of a manifest; `where` names it in messages.

    Raises:
        DataError: The manifest is malformed or inconsistent.
    """
    try:
        splits = json.loads(data)["splits"]
        infos = {str(split): _parse_split(str(split), entry) for split, entry in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{where}: not a valid manifest of shards ({type(error).__name__}: {error}); restore it, or remove it to"
            f" count the shards instead"
        ) from error
    if not infos:
        raise DataError(f"{where}: the manifest has no splits; restore it, or remove it to count the shards instead")
    for split, info in infos.items():
        stated = splits[split].get("num_samples", info.num_samples)
        if stated != info.num_samples:
            raise DataError(
                f"{where}: split {split!r} has num_samples {stated!r}, but its shard lengths add up to"
                f" {info.num_samples}; restore the manifest, or remove it to count the shards instead"
            )
    return infos


def _parse_split(split: str, entry: Mapping[str, Any]) -> ShardInfo:
    files, lengths = entry["filenames"], entry["shard_lengths"]
    _check_files(split, files, lengths)
    columns = [files, lengths]
    for name, kind in (("sizes", int), ("sha256", str), ("listings", str)):
        values = entry.get(name) or [None] * len(files)
        if len(values) != len(files):
            raise ValueError(f"split {split!r}: {len(values)} {name} for {len(files)} shards")
        if odd := [value for value in values if value is not None and type(value) is not kind]:
            raise TypeError(f"split {split!r}: unexpected value {odd[0]!r} in {name}")
        columns.append(values)
    names = {name: tuple(entry.get(name) or ()) for name in ("class_names", "label_names")}
    for name, values in names.items():
        if not isinstance(entry.get(name) or [], list) or not all(isinstance(value, str) for value in values):
            raise TypeError(f"split {split!r}: expected {name} to be a list of names")
    counts = {
        name: {int(index): int(count) for index, count in (entry.get(name) or {}).items()}
        for name in ("label_counts", "group_counts")
    }
    role = entry.get("role")
    return ShardInfo(
        split=split,
        shards=tuple(starmap(ShardRecord, zip(*columns, strict=True))),
        name=str(entry.get("dataset") or ""),
        role=None if role is None else Role(role),
        extra=dict(entry.get("extra") or {}),
        class_names=names["class_names"],
        label_names=names["label_names"],
        label_counts=counts["label_counts"],
        group_counts=counts["group_counts"],
    )


def _check_files(split: str, files: Any, lengths: Any) -> None:
    """Check that every shard has a file name within the folder and a number of samples."""
    if not isinstance(files, list):
        raise TypeError(f"split {split!r}: expected filenames to be a list")
    if len(files) != len(lengths) or len(set(files)) < len(files):
        raise ValueError(
            f"split {split!r}: {len(files)} file names, {len(set(files))} distinct, {len(lengths)} lengths"
        )
    for file in files:
        if not isinstance(file, str) or PurePosixPath(file).is_absolute() or {"..", ""} & set(file.split("/")):
            raise ValueError(f"split {split!r}: file name {file!r} leads outside of the folder")
        if "::" in file or ":" in file.split("/")[0]:
            raise ValueError(f"split {split!r}: {file!r} is not a file name")
    if any(type(n) is not int or n < 0 for n in lengths):
        raise ValueError(f"split {split!r}: shard lengths must be non-negative integers")


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


def check_finished(directory: str | Path, infos: Mapping[str, ShardInfo]) -> None:
    """Refuse the shards of an interrupted build, which are incomplete.

    Raises:
        DataError: There are shards that the manifest does not list yet.
    """
    listed = {record.file for info in infos.values() for record in info.shards}
    notes = sorted(path.name.removesuffix(".json") for path in (Path(directory) / WORK_FOLDER).glob("*.tar.json"))
    if waiting := [file for file in notes if file not in listed and (Path(directory) / file).is_file()]:
        raise DataError(
            f"{directory}: the build was interrupted after {len(waiting)} shards (first {waiting[0]!r}); run it again"
            f" to resume, or remove the folder"
        )
