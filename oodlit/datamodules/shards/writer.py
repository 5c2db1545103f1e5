"""Write one shard: deterministic bytes, whole or not at all."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from oodlit.datamodules.keys import escape_key
from oodlit.datamodules.shards.manifest import ShardRecord
from oodlit.datamodules.shards.members import IMAGE_FIELDS, LABEL_FIELD, MAX_INDEX, MAX_MEMBER_BYTES, META_FIELD
from oodlit.errors import DataError

__all__ = ["Entry", "image_field", "listing_digest", "write_shard"]

_ALIASES = {"jpeg": "jpg", "tif": "tiff"}  # one field name per format, the one that timm looks for


@dataclass(frozen=True)
class Entry:
    """One image file to be packed.

    Args:
        path: Relative path with "/"; its escaped form is the key (`oodlit.datamodules.keys.escape_key`).
        read: Gives the bytes of the file, which are stored as they are.
        label: Class index of the classifier; -1 = none.
        group: Index of the OOD class, unit test or kind of shift; -1 = none.
        in_order: `read` works only until the next entry is taken (compressed archives).

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
    """Field that an image file gets: its extension in lower case, with aliases merged.

    Raises:
        DataError: The extension is none of an image.

    Example:
        >>> image_field("a/b_0.9976.JPEG")
        'jpg'
    """
    extension = PurePosixPath(path).suffix[1:].lower()
    if extension not in IMAGE_FIELDS:
        raise DataError(
            f"{path!r}: extension {extension!r} is none of an image ({', '.join(IMAGE_FIELDS)});"
            " leave the file out of the listing or rename it"
        )
    return _ALIASES.get(extension, extension)


def listing_digest(entries: Iterable[Entry]) -> str:
    """Digest of what a shard is to hold, known without reading any image."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(json.dumps([entry.path, entry.label, entry.group]).encode() + b"\n")
    return digest.hexdigest()


class ShardWriter:
    """Writes samples into one tar under a temporary name; `commit` gives it its name.

    The bytes depend on the entries alone: no times, owners or random names. Layout per sample: `<key>.cls` (label as
    text, -1 = none), `<key>.<image>` (original bytes), `<key>.json` (group, label, path, size in bytes).
    """

    def __init__(self, path: str | Path, *, check: Callable[[bytes], object] | None = None) -> None:
        """Open the temporary file beside `path`. `check` gets every image and raises `DataError` if it is bad."""
        self._check = check
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self._file = self._temporary.open("wb")
        self._digest = hashlib.sha256()
        stream = cast(BinaryIO, _Hashing(self._file, self._digest.update))
        self._tar = tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.samples = 0
        self._listing = hashlib.sha256()

    def add(self, entry: Entry) -> int:
        """Append one entry; gives the size of its image in bytes.

        Raises:
            DataError: The file cannot be read, is empty or too large.
        """
        try:
            data = entry.read()
        except OSError as error:
            raise DataError(f"{entry.path!r} cannot be read: {error}") from error
        if not data or len(data) > MAX_MEMBER_BYTES:
            raise DataError(
                f"{entry.path!r} has {len(data)} bytes; 1 to {MAX_MEMBER_BYTES} are needed for an image"
                " - repair the source or leave the file out of the listing"
            )
        if self._check is not None:
            try:
                self._check(data)
            except DataError as error:
                raise DataError(
                    f"{entry.path!r}: {error} - repair the source, or leave the file out of the listing"
                ) from error
        if not (-1 <= entry.label < MAX_INDEX and -1 <= entry.group < MAX_INDEX):
            raise DataError(
                f"{entry.path!r}: label {entry.label}, group {entry.group}; indices from 0 to {MAX_INDEX - 1}, or -1"
                " for none, are needed"
            )
        meta: dict[str, Any] = {"group": entry.group, "label": entry.label, "path": entry.path, "size": len(data)}
        self._write(f"{entry.key}.{LABEL_FIELD}", str(entry.label).encode())
        self._write(f"{entry.key}.{image_field(entry.path)}", data)
        self._write(f"{entry.key}.{META_FIELD}", json.dumps(meta).encode())
        self._listing.update(json.dumps([entry.path, entry.label, entry.group]).encode() + b"\n")
        self.samples += 1
        return len(data)

    def _write(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        self._tar.addfile(info, io.BytesIO(data))

    def finish(self) -> ShardRecord:
        """Close the temporary file, with its bytes on disk; gives what the manifest says of it."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return ShardRecord(self.path.name, self.samples, size, self._digest.hexdigest(), self._listing.hexdigest())

    def commit(self) -> None:
        """Give the finished file its name."""
        self._temporary.replace(self.path)

    def abort(self) -> None:
        """Remove the temporary file."""
        try:
            self._file.close()  # on a full disk this fails again
        finally:
            self._temporary.unlink(missing_ok=True)


def write_shard(path: str | Path, entries: Iterable[Entry]) -> ShardRecord:
    """Write `entries` into one tar at `path`, atomically.

    Raises:
        DataError: An entry cannot be read or stored.
    """
    writer = ShardWriter(path)
    try:
        for entry in entries:
            writer.add(entry)
        record = writer.finish()
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return record


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO, update: Callable[[bytes], None]) -> None:
        self._file, self._update = file, update

    def write(self, data: bytes) -> int:
        self._update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()
