"""The package's way to write files and folders: they are either the old ones or the new ones, never half of either.

What is being written has a hidden name of its own, `.<name>.<8 hexadecimal digits>.tmp`, and is locked by its writer.
The system drops the lock when the writer ends, however it ends: whoever writes to the same place next removes what
nobody holds, and never what somebody is still writing.
"""

import contextlib
import glob
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

ABANDONED_S = 86_400.0
"""Age of a leftover where the file system has no locks: one day."""
ORPHANS_S = 10.0
"""How long a lock may be held on after its holder was killed: processes that it forked share the lock, and those that
load data look every five seconds whether it is still there."""


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file through a temporary sibling that replaces it once it is on disk."""
    write_files({Path(path): data})


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together: none takes its place before all are on disk.

    Args:
        files: What to write, by its place; they are put there in this order.

    Raises:
        IsADirectoryError: A place is that of a folder.
    """
    if folders := [path for path in files if path.is_dir()]:
        raise IsADirectoryError(f"{folders[0]} is a folder; the name of a file is needed")
    with contextlib.ExitStack() as stack:
        temporaries = [stack.enter_context(temporary_file(path)) for path in files]
        for temporary, data in zip(temporaries, files.values(), strict=True):
            temporary.write_bytes(data)
            fsync(temporary)
        for temporary, path in zip(temporaries, files, strict=True):
            temporary.replace(path)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` in UTF-8."""
    write_bytes(path, text.encode())


def fsync(path: Path) -> None:
    """Bring the content of a file, or the names in a folder, to disk. Windows does the latter by itself."""
    is_folder = path.is_dir()
    if is_folder and sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows refuses handles that cannot write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of the file at `path`, which exists for this alone and is made if it is not there.

    Raises:
        BlockingIOError: Another process or thread holds it, `wait` is False, and `ORPHANS_S` have passed.
        OSError: The file cannot be made.
    """
    held = FileLock(path, timeout=-1 if wait else ORPHANS_S)
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is held by another process") from None
    try:
        yield
    finally:
        held.release()


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
    remove_leftovers(target.parent if inside else target, glob.escape(target.name))
    with _temporary(target, target if inside else target.parent, is_folder=True) as path:
        yield path


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove from `folder` what killed writers left of files and folders whose names match the pattern `names`."""
    for path in folder.glob(f".{names}.{'[0-9a-f]' * 8}.tmp"):
        with contextlib.suppress(OSError):  # gone meanwhile, held, or somebody else's
            handle = _locked(path, wait=False)
            try:
                if handle is not None or time.time() - path.stat().st_mtime > ABANDONED_S:
                    remove(path)
            finally:
                _close(handle)


@contextlib.contextmanager
def _temporary(target: Path, parent: Path, *, is_folder: bool) -> Iterator[Path]:
    remove_leftovers(parent, glob.escape(target.name))
    path, handle = _claimed(target, parent, is_folder=is_folder)
    try:
        yield path
    finally:
        remove(path)
        _close(handle)


def _claimed(target: Path, parent: Path, *, is_folder: bool) -> tuple[Path, int | None]:
    """A new file or folder with the handle that locks it."""
    while True:
        path = parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        if is_folder:
            path.mkdir()
        else:
            path.touch(exist_ok=False)
        with contextlib.suppress(FileNotFoundError):  # another process took it for a leftover before it was locked
            handle = _locked(path, wait=True)
            try:
                if handle is None or os.path.samestat(os.fstat(handle), path.stat()):
                    return path, handle
            except BaseException:
                _close(handle)
                raise
            _close(handle)


def _locked(path: Path, *, wait: bool) -> int | None:
    """Lock a file or folder that holds data itself, which `filelock` would empty or cannot open.

    Returns:
        The handle that holds the lock; None where the system has no such locks.

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


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
