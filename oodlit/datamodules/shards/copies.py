"""Check cached copies of shards by length, and by checksum if it is known.

Downloads are checked while they arrive. Checking the copy as well detects later damage, and copies of shards that were
rebuilt under the same name.
"""

import hashlib
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

CHUNK = 2**20


def is_whole(path: Path, size: int | None) -> bool:
    """Whether a copy exists with the right length, or if that is unknown, a tar with its end."""
    if not path.is_file():
        return False
    if size is not None or path.suffix != ".tar":
        return size in (None, path.stat().st_size)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * tarfile.BLOCKSIZE))
        return file.read() == bytes(2 * tarfile.BLOCKSIZE)


def has_checksum(path: Path, sha256: str) -> bool:
    """Whether a copy has this checksum. It is computed once per process, and again if the file has changed."""
    state = path.stat()  # no program can set st_ctime back
    return _checksum(path, state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns) == sha256


@lru_cache(maxsize=100_000)
def _checksum(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hexdigest(file)


def hexdigest(file: BinaryIO, algorithm: str = "sha256") -> str:
    """Hexadecimal checksum from the current position to the end of the file."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
