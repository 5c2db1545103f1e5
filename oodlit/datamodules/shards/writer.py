"""Write single shards, atomically and deterministically."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from oodlit.base.atomic import fsync, temporary_file
from oodlit.base.errors import DataError
from oodlit.datamodules.keys import escape_key
from oodlit.datamodules.shards.manifest import ShardRecord
from oodlit.datamodules.shards.members import IMAGE_FIELDS, LABEL_FIELD, MAX_INDEX, MAX_MEMBER_BYTES, META_FIELD

_ALIASES = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tif": "tiff"}  # one field name per format, as timm expects it


@dataclass(frozen=True)
class Entry:
    """One image file to be packed.

    Args:
        path: Relative path with "/"; its escaped form is the key (`oodlit.datamodules.keys.escape_key`).
        read: Returns the bytes of the file, which are stored as they are.
        label: Class index of the classifier; -1 = none.
        group: Index of the OOD class, unit test or kind of shift; -1 = none.
        in_order: Whether `read` only works until the next entry is requested (compressed archives).

    Example:
        >>> Entry("sea/a.b.JPEG", lambda: b"...", group=3).key
        'sea/a%2Eb%2EJPEG'
    """

    path: str
    read: Callable[[], bytes]
    label: int = -1
    group: int = -1
    in_order: bool = False

    @property
    def key(self) -> str:
        """Key within the data set."""
        return escape_key(self.path)


def image_field(path: str) -> str:
    """Field name of an image file: its lower-case extension, with aliases merged.

    Raises:
        DataError: It is not the extension of an image.

    Example:
        >>> image_field("a/b_0.9976.JPEG")
        'jpg'
    """
    extension = PurePosixPath(path).suffix[1:].lower()
    if extension not in IMAGE_FIELDS:
        raise DataError(
            f"{path!r}: expected an image extension ({', '.join(IMAGE_FIELDS)}), got {extension!r}; rename the file"
        )
    return _ALIASES.get(extension, extension)


def listing_digest(entries: Iterable[Entry]) -> str:
    """Digest of a shard's entries, without reading any image."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(_listed(entry))
    return digest.hexdigest()


def write_shard(
    path: str | Path,
    entries: Iterable[Entry],
    *,
    check: Callable[[bytes], object] | None = None,
    on_record: Callable[[ShardRecord], object] | None = None,
) -> ShardRecord:
    """Atomically write `entries` into one tar at `path`.

    The bytes only depend on the entries: there are no times, owners or random names. Layout per sample: `<key>.cls`
    (label as text, -1 = none), `<key>.<image>` (original bytes), `<key>.json` (group, label, path, size in bytes).

    Args:
        path: The shard.
        entries: The entries, in order.
        check: Called with every image; raises `DataError` for a bad one.
        on_record: Called with the result when the bytes are on disk, before the shard gets its name.

    Returns:
        The record for the manifest.

    Raises:
        DataError: An entry cannot be read or stored.
    """
    path, samples, listing = Path(path), 0, hashlib.sha256()
    with temporary_file(path) as temporary:
        with temporary.open("wb") as file:
            hashing = _Hashing(file)
            with tarfile.open(fileobj=cast(BinaryIO, hashing), mode="w:", format=tarfile.PAX_FORMAT) as tar:
                for entry in entries:
                    _add(tar, entry, _checked(entry, check))
                    listing.update(_listed(entry))
                    samples += 1
            size = file.tell()
        fsync(temporary)
        record = ShardRecord(path.name, samples, size, hashing.digest.hexdigest(), listing.hexdigest())
        if on_record is not None:
            on_record(record)
        temporary.replace(path)
    return record


def _listed(entry: Entry) -> bytes:
    """Bytes of an entry for the digest of a listing."""
    return json.dumps([entry.path, entry.label, entry.group]).encode() + b"\n"


def _checked(entry: Entry, check: Callable[[bytes], object] | None) -> bytes:
    """Read and check the image of an entry.

    Raises:
        DataError: The file cannot be read, is empty, too large or bad, or an index is out of range.
    """
    try:
        data = entry.read()
    except OSError as error:
        raise DataError(f"cannot read {entry.path!r}: {error}") from error
    if not data or len(data) > MAX_MEMBER_BYTES:
        raise DataError(
            f"{entry.path!r}: expected 1 to {MAX_MEMBER_BYTES} bytes, got {len(data)}; repair or remove the file"
        )
    try:
        if check is not None:
            check(data)
    except DataError as error:
        raise DataError(f"{entry.path!r}: {error}; repair the file, or remove it from the listing") from error
    if not (-1 <= entry.label < MAX_INDEX and -1 <= entry.group < MAX_INDEX):
        raise DataError(
            f"{entry.path!r}: expected label and group from -1 (none) to {MAX_INDEX - 1}, got label {entry.label} and"
            f" group {entry.group}"
        )
    return data


def _add(tar: tarfile.TarFile, entry: Entry, data: bytes) -> None:
    meta: dict[str, Any] = {"group": entry.group, "label": entry.label, "path": entry.path, "size": len(data)}
    fields = {
        LABEL_FIELD: str(entry.label).encode(),
        image_field(entry.path): data,
        META_FIELD: json.dumps(meta).encode(),
    }
    for field, content in fields.items():
        info = tarfile.TarInfo(f"{entry.key}.{field}")
        info.size, info.mode = len(content), 0o644
        tar.addfile(info, io.BytesIO(content))


class _Hashing:
    """A file that computes the checksum of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest, self._file, self.tell = hashlib.sha256(), file, file.tell

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)
