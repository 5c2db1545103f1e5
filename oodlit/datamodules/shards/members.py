"""Samples of a shard: group the members of a tar by their headers, and read image, label and group.

WebDataset's rule: adjacent files whose names are equal up to the first dot of the last part are one sample.
"""

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from oodlit.base.errors import DataError
from oodlit.base.json_files import loads
from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.keys import is_hidden, printable, unescape_key
from oodlit.datamodules.shards.tars import HEADER_ERRORS, tar_members
from oodlit.datamodules.stream import Sample
from oodlit.datamodules.subsets import SampleFacts

IMAGE_FIELDS = (
    *("jpg", "jpeg", "jpe", "jfif", "png", "gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "pbm"),
    *("jp2", "j2k", "avif"),
)
"""Extensions of the image field, case-insensitive."""
LABEL_FIELD = "cls"
"""The class index as decimal text."""
META_FIELD = "json"
"""JSON object with "group", "path" and, if there is no label field, "label"."""
MAX_INDEX = 10**9
"""Upper limit of labels and groups: nine digits."""
MAX_MEMBER_BYTES = 256 * 2**20
"""Largest file in a shard or archive that is read into memory."""
MAX_FACTS_BYTES = 2**24
"""Largest label or JSON field of a sample."""
_LABEL = re.compile(rb"\s*(-1|[0-9]{1,9})\s*")


class ShardDamageError(DataError):
    """A shard is missing, truncated or unreadable."""


@dataclass(frozen=True)
class Member:
    """Location of one file's bytes in the tar."""

    name: str
    offset: int
    size: int


@dataclass
class RawSample:
    """The files of one sample, before they are read."""

    key: str
    fields: dict[str, Member] = field(default_factory=dict)

    @property
    def image_field(self) -> str | None:
        """Extension of the image."""
        return next((name for name in self.fields if name in IMAGE_FIELDS), None)

    @property
    def is_stray(self) -> bool:
        """Whether the files have no known field and therefore do not form a sample."""
        known = (*IMAGE_FIELDS, LABEL_FIELD, META_FIELD)
        return not any(name.rpartition(".")[2] in known for name in self.fields)

    @property
    def error(self) -> str | None:
        """The reason why this sample is unusable; None if it is usable."""
        if sum(name in IMAGE_FIELDS for name in self.fields) == 1:
            return None
        names = ", ".join(self.fields)
        if self.image_field is not None:
            return f"several images share one key (fields {names}); rename the images"
        if any("." in name for name in self.fields):
            return (
                f"found no image field, only the fields {names}. WebDataset splits file names at the first dot; build"
                " the shards with `oodlit shards build`, which escapes dots"
            )
        return f"expected an image field ({', '.join(IMAGE_FIELDS)}), got fields {names}"


def raw_samples(file: BinaryIO, where: str, on_stray: Callable[[str], None]) -> Iterator[RawSample]:
    """Samples of a tar in order, from its headers; the data between them is skipped by seeking.

    Args:
        file: The uncompressed tar, seekable.
        where: Name of the shard, for messages.
        on_stray: Called with the name of every file that does not belong to a sample (hidden files, READMEs).

    Raises:
        ShardDamageError: The tar is damaged or truncated.
        DataError: Files of a sample are not adjacent, a key occurs twice, or a member is a link or device.
    """
    current: RawSample | None = None
    seen: set[str] = set()
    for info in _headers(file, where):
        place = _split(info.name)
        if place is None:
            on_stray(info.name)
            continue
        key, extension = place
        if not info.isreg() or info.issparse():
            raise DataError(f"shard {where}: expected plain files, but {info.name!r} is a link, device or sparse file")
        if current is None or key != current.key:
            if current is not None:
                yield from _finished(current, on_stray)
            if key in seen:
                raise DataError(
                    f"shard {where}: key {key!r} occurs again at {info.name!r}, after files of another sample. Two"
                    " samples have the same key, or the files of one sample are not adjacent. Pack the files sorted"
                    " by name, or build the shards with `oodlit shards build`"
                )
            seen.add(key)
            current = RawSample(key)
        if extension in current.fields:
            raise DataError(f"shard {where}: key {key!r} has two {extension!r} files; keys must be unique")
        current.fields[extension] = Member(info.name, info.offset_data, info.size)
    if current is not None:
        yield from _finished(current, on_stray)


def zeros_fault(file: BinaryIO) -> str:
    """The fault of a file that contains only zeros (a tar without members, or a failed download); otherwise empty."""
    file.seek(0)
    if any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(2**16), b"")):
        return ""
    return "the file contains only zeros, but no manifest lists it as an empty shard; download it again, or remove it"


def _finished(sample: RawSample, on_stray: Callable[[str], None]) -> Iterator[RawSample]:
    if sample.is_stray:
        for member in sample.fields.values():
            on_stray(member.name)
    else:
        yield sample


def _headers(file: BinaryIO, where: str) -> Iterator[tarfile.TarInfo]:
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        for info, _ in tar_members(file, length):
            yield info
    except HEADER_ERRORS as error:
        raise ShardDamageError(
            f"shard {where} is not an intact uncompressed tar ({describe_error(error)}); download or build it again"
        ) from error


def _split(name: str) -> tuple[str, str] | None:
    """Key and lower-case extension; None for files that are not part of a sample."""
    # Windows programs write "\\" between folders
    parts = [part for part in printable(name.replace("\\", "/")).split("/") if part not in ("", ".")] or [""]
    if is_hidden("/".join(parts)) or any(part.startswith("__") and part.endswith("__") for part in parts):
        return None
    stem, dot, extension = parts[-1].partition(".")
    return None if not dot else ("/".join([*parts[:-1], stem]), extension.lower())


def read_sample(file: BinaryIO, raw: RawSample, where: str) -> Sample:
    """Read the fields of one sample. Problems of a single sample become its `error`.

    Args:
        file: The shard.
        raw: Location of the fields.
        where: Name of the shard, for messages.

    Raises:
        ShardDamageError: The shard ends within a field.
    """
    try:
        return _intact_sample(file, raw, where)
    except _SampleError as error:
        return Sample(raw.key, b"", error=str(error), origin=f"shard {where}")


def _intact_sample(file: BinaryIO, raw: RawSample, where: str) -> Sample:
    if raw.error is not None:
        raise _SampleError(raw.error)
    meta = _meta(file, raw, where)
    label = _label(file, raw, meta, where)
    group = _checked_index(meta.get("group", -1), "group")
    image = _bytes(file, raw.fields[str(raw.image_field)], where)
    return Sample(raw.key, image, label, group, origin=f"shard {where}")


def read_facts(file: BinaryIO, raw: RawSample, where: str) -> SampleFacts:
    """Read the facts of one sample, not its image. A sample with unreadable facts has no label and no group."""
    try:
        meta = _meta(file, raw, where)
        label, group = _label(file, raw, meta, where), _checked_index(meta.get("group", -1), "group")
    except _SampleError:
        meta, label, group = {}, -1, -1
    name = meta.get("filename")  # timm numbers its samples, and keeps the name of the file here
    is_named = isinstance(name, str) and raw.key.rpartition("/")[2].isdecimal()
    return SampleFacts(str(name) if is_named else unescape_key(raw.key), label, group)


class _SampleError(Exception):
    """Raised for an unusable sample in an intact shard."""


def _bytes(file: BinaryIO, member: Member, where: str, limit: int = MAX_MEMBER_BYTES) -> bytes:
    if member.size > limit:
        raise _SampleError(f"{member.name!r} has {member.size} bytes, more than the limit of {limit}")
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise ShardDamageError(f"shard {where} is truncated within {member.name!r}; download or build it again")
    return data


def _meta(file: BinaryIO, raw: RawSample, where: str) -> dict[str, Any]:
    if META_FIELD not in raw.fields:
        return {}
    try:
        meta = loads(_bytes(file, raw.fields[META_FIELD], where, MAX_FACTS_BYTES))
    except (ValueError, RecursionError) as error:
        raise _SampleError(f"field .json is not valid JSON: {error}") from error
    return meta if isinstance(meta, dict) else {}


def _label(file: BinaryIO, raw: RawSample, meta: dict[str, Any], where: str) -> int:
    if LABEL_FIELD in raw.fields:
        text = _bytes(file, raw.fields[LABEL_FIELD], where, MAX_FACTS_BYTES)
        match = _LABEL.fullmatch(text)
        if match is None:
            raise _SampleError(f"field .cls: expected a class index, or -1 for none; got {text[:20]!r}")
        return int(match[1])
    label = meta.get("label", -1)
    if type(label) is not int:  # other programs store names there
        return -1
    return _checked_index(label, "label")


def _checked_index(value: object, what: str) -> int:
    if type(value) is int and -1 <= value < MAX_INDEX:
        return value
    raise _SampleError(f"{what} in .json: expected an index from 0 to {MAX_INDEX - 1}, or -1; got {repr(value)[:20]}")
