"""Whether a copy in the cache is the file that was announced: by its length, and by its checksum where one is known.

A checksum costs one reading of the file. What was found is noted beside the copy together with the file's state on
disk, so that a copy is read for it once, and again only after something has touched the file.
"""

import contextlib
import hashlib
import json
import os
import tarfile
import time
from pathlib import Path
from typing import BinaryIO

from oodlit.atomic import write_bytes

__all__ = ["has_checksum", "is_known", "is_whole", "sha256_of"]

CHUNK = 2**20
MARGIN_NS = 2 * 10**9
"""A file changed within two seconds before it was read may change again with the same time stamp: nothing is noted."""


def is_whole(path: Path, size: int | None) -> bool:
    """Whether a copy is there with the right length, or, if that is unknown, a tar with its end."""
    if not path.is_file():
        return False
    if size is not None or path.suffix != ".tar":
        return size in (None, path.stat().st_size)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * tarfile.BLOCKSIZE))
        return file.read() == bytes(2 * tarfile.BLOCKSIZE)


def is_known(path: Path, sha256: str | None) -> bool:
    """Whether there is nothing to check, or the note beside the copy says that this very file had this checksum."""
    if sha256 is None:
        return True
    try:
        return bool(json.loads(_note(path).read_bytes()) == _content(sha256, path.stat()))
    except (OSError, ValueError):
        return False


def has_checksum(path: Path, sha256: str) -> bool:
    """Read the whole copy and compare; a match is noted beside it, if the folder can be written."""
    state = path.stat()
    started = time.time_ns()
    with path.open("rb") as file:
        if sha256_of(file) != sha256:
            return False
    if started - max(state.st_mtime_ns, state.st_ctime_ns) > MARGIN_NS:
        with contextlib.suppress(OSError):  # a cache that others fill: the next reader checks again
            write_bytes(_note(path), json.dumps(_content(sha256, state)).encode())
    return True


def sha256_of(file: BinaryIO) -> str:
    """Checksum from here to the end of the file, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.checked")


def _content(sha256: str, state: os.stat_result) -> dict[str, object]:
    """Every write changes at least the last of these times, which no program can set back."""
    return {"sha256": sha256, "state": [state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns]}
