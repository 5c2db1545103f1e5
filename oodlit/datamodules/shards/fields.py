"""Read samples from shards: image, label and group, or the reason why a sample cannot be used."""

import re
from typing import Any, BinaryIO

from oodlit.base.json_files import loads
from oodlit.datamodules.shards.members import (
    LABEL_FIELD,
    MAX_INDEX,
    MAX_MEMBER_BYTES,
    META_FIELD,
    Member,
    RawSample,
    ShardDamageError,
)
from oodlit.datamodules.stream import Sample

_LABEL = re.compile(rb"\s*(-1|[0-9]{1,9})\s*")


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


class _SampleError(Exception):
    """Raised for an unusable sample in an intact shard."""


def _bytes(file: BinaryIO, member: Member, where: str) -> bytes:
    if member.size > MAX_MEMBER_BYTES:
        raise _SampleError(f"{member.name!r} has {member.size} bytes, more than the limit of {MAX_MEMBER_BYTES}")
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise ShardDamageError(f"shard {where}: truncated within {member.name!r}; download or build this shard again")
    return data


def _meta(file: BinaryIO, raw: RawSample, where: str) -> dict[str, Any]:
    if META_FIELD not in raw.fields:
        return {}
    try:
        meta = loads(_bytes(file, raw.fields[META_FIELD], where))
    except (ValueError, RecursionError) as error:
        raise _SampleError(f"field .json is not JSON: {error}") from error
    return meta if isinstance(meta, dict) else {}


def _label(file: BinaryIO, raw: RawSample, meta: dict[str, Any], where: str) -> int:
    if LABEL_FIELD in raw.fields:
        text = _bytes(file, raw.fields[LABEL_FIELD], where)
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
