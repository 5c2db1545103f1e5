"""Files and folders that are either the old ones or the new ones, never half of either.

What is being written has a hidden name of its own, `.<name>.<8 hexadecimal digits>.tmp`, and is locked by its writer.
The system drops the lock when the writer ends, however it ends: whoever writes to the same place next removes what
nobody holds, and never what somebody is still writing.
"""

import contextlib
import glob
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

__all__ = ["temporary_file", "temporary_folder", "write_bytes"]

ABANDONED_S = 86_400.0
"""Age of a leftover where the file system has no locks: one day."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file through a temporary sibling that replaces it once it is on disk."""
    with temporary_file(path) as temporary:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


@contextlib.contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """An empty file beside `target`, for the one that will replace it; gone at the end if it still has its name.

    Leftovers of killed writers of the same target are removed first.
    """
    with _temporary(target, target.parent, is_folder=False) as path:
        yield path


@contextlib.contextmanager
def temporary_folder(target: Path, *, inside: bool = False) -> Iterator[Path]:
    """An empty folder beside `target`, or inside it; gone at the end with its content if it still has its name.

    Leftovers of killed writers of the same target, beside it and inside it, are removed first.
    """
    _remove_leftovers(target, target if not inside else target.parent)
    with _temporary(target, target if inside else target.parent, is_folder=True) as path:
        yield path


@contextlib.contextmanager
def _temporary(target: Path, parent: Path, *, is_folder: bool) -> Iterator[Path]:
    _remove_leftovers(target, parent)
    path, lock = _claimed(target, parent, is_folder=is_folder)
    try:
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def _claimed(target: Path, parent: Path, *, is_folder: bool) -> tuple[Path, int | None]:
    """A new file or folder with its lock."""
    while True:
        path = parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        if is_folder:
            path.mkdir()
        else:
            path.touch(exist_ok=False)
        with contextlib.suppress(FileNotFoundError):  # another process took it for a leftover before it was locked
            lock = _lock(path, wait=True)
            if lock is None:
                return path, None
            try:
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return path, lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)


def _remove_leftovers(target: Path, parent: Path) -> None:
    """Remove what killed writers of this target left in `parent`."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{8}\.tmp")
    for path in parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        if not pattern.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, held, or somebody else's
            lock = _lock(path, wait=False)
            try:
                if lock is not None or time.time() - path.stat().st_mtime > ABANDONED_S:
                    _remove(path)
            finally:
                if lock is not None:
                    os.close(lock)


def _lock(path: Path, *, wait: bool) -> int | None:
    """The lock of a file or folder; None where the system has none.

    Raises:
        BlockingIOError: Another process holds it, and `wait` is False.
        FileNotFoundError: There is no such file.
    """
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 - not there on Windows

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # some network file systems
        os.close(handle)
        return None
    return handle


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
