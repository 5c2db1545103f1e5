"""Write files and folders atomically: readers see the old content or the new content, never a mixture.

Content is first written under a hidden name, `.<name>.<8 hexadecimal digits>.tmp`, which its writer locks. The system
releases the lock when the writer ends for any reason: the next writer at the same place removes unlocked leftovers, and
never removes what another process is still writing.
"""

import contextlib
import errno
import glob
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from oodlit.base.text.warn import warn_here

ABANDONED_S = 86_400.0
"""Age at which leftover temporary files are removed on file systems without locks: one day."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_OF_DISKS = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO}
ORPHANS_S = 10.0
"""How long a lock can outlive its holder: forked processes share the lock, and data-loading workers check every
five seconds whether their parent still exists."""


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file safely: write a temporary file beside it, then replace the old file."""
    write_files({Path(path): data})


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together: no old file is replaced before all new ones are on disk.

    Args:
        files: Content by path, put in place in this order.

    Raises:
        IsADirectoryError: A path is a folder.
    """
    if folders := [path for path in files if path.is_dir()]:
        raise IsADirectoryError(f"expected a file name, got the folder {folders[0]}")
    with contextlib.ExitStack() as stack:
        temporaries = [stack.enter_context(temporary_file(path)) for path in files]
        for temporary, data in zip(temporaries, files.values(), strict=True):
            temporary.write_bytes(data)
            fsync(temporary)
        for temporary, path in zip(temporaries, files, strict=True):
            temporary.replace(path)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text like `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


def fsync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk.

    Names are flushed as far as the system can: Windows does so itself, and network file systems such as SMB refuse it.
    """
    if path.is_dir():
        with contextlib.suppress(OSError):
            _fsync(path, os.O_RDONLY)
    else:
        _fsync(path, os.O_RDWR)  # Windows requires a writable handle


def _fsync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of the file at `path`, which is only used for locking and created if missing.

    Some network file systems have no locks; there the caller continues without one, with a warning.

    Raises:
        BlockingIOError: Another process or thread holds it, `wait` is False, and `ORPHANS_S` have passed.
        OSError: The file cannot be created.
    """
    held = FileLock(path, timeout=-1 if wait else ORPHANS_S)
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked by another process") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warn_here(
            f"{path}: this file system does not support locks ({error.strerror}); make sure that no"
            f" other process writes to {path.parent}"
        )
    try:
        yield
    finally:
        held.release()


def is_locked(path: Path) -> bool:
    """Return whether another process or thread holds the `lock` of the file at `path`; False if that is unknown."""
    held = FileLock(path, timeout=0)
    try:
        if path.is_file():
            held.acquire()
    except Timeout:
        return True
    except OSError:  # the folder is not writable, or the file system has no locks
        return False
    held.release()
    return False


@contextlib.contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """Create an empty temporary file beside `target`, and remove it at the end unless it was renamed to `target`.

    Leftovers of interrupted writers of the same target are removed first.
    """
    with _temporary(target, target.parent, is_folder=False) as path:
        yield path


@contextlib.contextmanager
def temporary_folder(target: Path, *, inside: bool = False) -> Iterator[Path]:
    """Create an empty temporary folder beside or inside `target`, and remove it at the end unless it was renamed.

    Leftovers of interrupted writers of the same target, beside and inside it, are removed first.
    """
    remove_leftovers(target.parent if inside else target, glob.escape(target.name))
    with _temporary(target, target if inside else target.parent, is_folder=True) as path:
        yield path


def move(source: Path, target: Path, *, last: str = "") -> None:
    """Rename a file or folder; where a file system cannot rename folders, move their files one by one.

    Object stores mounted as folders are such file systems. There, another process can see a part of the folder; the
    files at its top come last. A target that is an empty folder is replaced.

    Args:
        source: A file or folder.
        target: The new path.
        last: Name of the file that readers require: it is moved last, so an interrupted move leaves no folder that
            seems complete.

    Raises:
        OSError: The source is missing, the target has content, or a file cannot be moved.
    """
    try:
        source.rename(target)
    except OSError:
        if not source.is_dir() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
            raise
        target.mkdir(exist_ok=True)
        for path in sorted(source.iterdir(), key=lambda path: (path.is_file(), path.name == last, path.name)):
            move(path, target / path.name)
        source.rmdir()


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove temporary files of interrupted writers from `folder`, for targets that match the pattern `names`."""
    for path in folder.glob(f".{names}.{'[0-9a-f]' * 8}.tmp"):
        with contextlib.suppress(OSError):  # already removed, locked, or owned by another user
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
    except OSError as error:
        if error.errno in _OF_DISKS and error.filename is None:  # writes do not name their file
            error.filename = str(target)
        raise
    finally:
        remove(path)
        _close(handle)


def _claimed(target: Path, parent: Path, *, is_folder: bool) -> tuple[Path, int | None]:
    """Create a file or folder and return it with the handle that locks it."""
    while True:
        path = parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        if is_folder:
            path.mkdir()
        else:
            path.touch(exist_ok=False)
        with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked
            handle = _locked(path, wait=True)
            try:
                if handle is None or os.path.samestat(os.fstat(handle), path.stat()):
                    return path, handle
            except BaseException:
                _close(handle)
                raise
            _close(handle)


def _locked(path: Path, *, wait: bool) -> int | None:
    """Lock an existing file or folder without changing it: `filelock` truncates files and cannot open folders.

    Returns:
        The handle that holds the lock; None if the system does not support such locks.

    Raises:
        BlockingIOError: Another process holds it and `wait` is False.
        FileNotFoundError: The file does not exist.
    """
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 - not available on Windows

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
    """Remove a file, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
