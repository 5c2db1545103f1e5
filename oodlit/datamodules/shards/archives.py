"""List and read the files of folders and archives without unpacking to disk."""

import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast, runtime_checkable

from oodlit.base.errors import DataError
from oodlit.datamodules.keys import is_hidden, repeated
from oodlit.datamodules.shards.decompression import Decompress, decompressor
from oodlit.datamodules.shards.members import MAX_MEMBER_BYTES
from oodlit.datamodules.shards.tars import HEADER_ERRORS, tar_members


@dataclass(frozen=True)
class File:
    """One file: its path within the source (separated by "/"), its size in bytes, and a function to read it."""

    path: str
    size: int
    read: Callable[[], bytes]
    in_order: bool = False
    """Whether `read` only works until the next file is requested."""


@runtime_checkable
class Files(Protocol):
    """Files in a fixed order.

    Hidden files and those of file servers are excluded (`is_hidden`); links within an archive are errors. Paths are
    relative, without ".", ".." or empty parts; archives with paths outside of them are refused.
    """

    @property
    @abstractmethod
    def paths(self) -> Sequence[str]:
        """Paths in the order of iteration."""

    @abstractmethod
    def __iter__(self) -> Iterator[File]:
        """Iterate over the files, repeatedly if needed."""


def open_files(source: str | Path) -> Files:
    """List a folder, a .zip, a .tar, or a compressed tar (.tar.gz, .tgz, .tar.bz2, .tar.xz).

    Folders and zips are sorted by path, tars keep the order of the archive. A compressed tar is read once for the list
    and once per iteration; all others allow random access.

    Raises:
        DataError: The source is missing, of another kind, or damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "b.txt").write_bytes(b"sea"), Path(folder, "a.txt").write_bytes(b"")
        ...     [(file.path, file.size, file.read()) for file in open_files(folder)]
        [('a.txt', 0, b''), ('b.txt', 3, b'sea')]
    """
    path = Path(source)
    if path.is_dir():
        return _Folder(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a folder, a .zip or a .tar (.gz, .bz2, .xz)")
    if _is_plain_tar(path):  # before zip: a tar that ends in a zip looks like a zip
        return _Tar(path)
    if zipfile.is_zipfile(path):
        return _Zip(path)
    decompress = decompressor(path)
    if decompress is None:
        text = "unpack it and pass the folder, or download it again if it is damaged"
        raise DataError(f"{path}: expected a .zip or .tar (.gz, .bz2, .xz), got another format; {text}")
    return _CompressedTar(path, decompress)


def _clean(name: str, where: Path) -> str:
    """Normalize a member's path, including backslashes, which Windows programs write between folders."""
    path = name.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or re.match("[A-Za-z]:/", path) or ".." in parts or not parts:
        text = f"expected relative paths inside the archive, got {name!r}"
        raise DataError(f"{where}: {text}; if you trust the archive, unpack it and pass the folder")
    return "/".join(parts)


def _read(open_file: Callable[[], IO[bytes]], path: str, size: int, where: Path) -> bytes:
    """The bytes of a file of `size` bytes in the source `where`.

    Raises:
        DataError: It is too large, damaged or truncated.
    """
    if size > MAX_MEMBER_BYTES:
        limit = f"more than the limit of {MAX_MEMBER_BYTES:,}"
        raise DataError(f"{where}: {path!r} has {size:,} bytes, {limit}; remove this file from the source")
    try:
        with open_file() as file:
            data = file.read(size + 1)
    except RuntimeError as error:  # another compression, or encrypted
        raise DataError(f"{where}: {path!r} cannot be read ({error}); {_OTHER_PROGRAM}") from error
    except _UNREADABLE as error:
        raise DataError(f"{where}: {path!r} is damaged ({error}); download {where} again") from error
    if len(data) < size:
        text = f"{path!r} is truncated (expected {size:,} bytes, got {len(data):,})"
        raise DataError(f"{where}: {text}; download {where} again")
    return data[:size]


_FREE_FILES, _BYTES_PER_FILE = 100_000, 16
"""Number of files that any compressed tar may contain, and bytes of the tar that allow one additional file."""
_UNREADABLE = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_OTHER_PROGRAM = "unpack the archive with another program and pass the folder"


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found: list[str] = []
        above: dict[str, frozenset[str]] = {os.path.dirname(folder): frozenset()}  # noqa: PTH120
        for place, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
            real, parents = os.path.realpath(place), above[os.path.dirname(place)]  # noqa: PTH120
            if real in parents:  # a link to a parent folder
                folders.clear()
                continue
            above[place] = parents | {real}
            below = Path(place).relative_to(folder).as_posix()
            found.extend(name if below == "." else f"{below}/{name}" for name in names)
        self.paths = sorted(path for path in found if not is_hidden(path))
        if lost := [path for path in self.paths if "\\" in path]:
            raise DataError(
                f"{folder}: found {len(lost)} names with a backslash (first: {lost[0]!r}), probably because an archive"
                " from Windows was unpacked without its folders; pass the archive itself, or rename the files"
            )

    def __iter__(self) -> Iterator[File]:
        for path in self.paths:
            full = self._folder / path
            try:
                status = full.stat()
            except OSError as error:
                raise DataError(f"cannot read {full}: {error}") from error
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
                raise DataError(f"{full}: expected a plain file, got a pipe, socket or device")
            size = status.st_size
            opened: Callable[[], IO[bytes]] = partial(full.open, "rb")  # type: ignore[assignment]  # mypy ignores the mode
            yield File(path, size, partial(_read, opened, path, size, self._folder))


def _raise(error: OSError) -> None:
    raise DataError(f"cannot list {error.filename}: {error}") from error


def _zip_name(info: zipfile.ZipInfo) -> str:
    """Name of a member. macOS and older programs store UTF-8 without a flag, which Python decodes as code page 437."""
    if info.flag_bits & 0x800 or info.filename.isascii():
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _is_zip_folder(info: zipfile.ZipInfo) -> bool:
    return info.is_dir() or (info.filename.endswith("\\") and not info.file_size)


def _check_one_zip(path: Path, infos: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse concatenated zips, of which programs only read the last one."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 2**16 - 22))
        end = file.read()
        mark = end.rfind(b"PK\5\6")
        behind = end[mark + 22 + int.from_bytes(end[mark + 20 : mark + 22], "little") :]
        first = min((info.header_offset for info in infos), default=0)
        file.seek(0)
        before = file.read(4) if first else b""
    if before == b"PK\3\4" or behind.strip(b"\0"):
        what = f"{first} bytes before the zip" if before else f"{len(behind)} bytes after the zip"
        raise DataError(
            f"{path}: {what} would be ignored; download the archive again, or pass concatenated archives one by one"
        )


class _Zip:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            text = f"download it again if it is damaged, or {_OTHER_PROGRAM}"
            raise DataError(f"{path}: cannot read the zip ({error}); {text}") from error
        _check_one_zip(path, self._zip.infolist())
        named = [(_clean(_zip_name(info), path), info) for info in self._zip.infolist() if not _is_zip_folder(info)]
        named = sorted(((name, info) for name, info in named if not is_hidden(name)), key=lambda pair: pair[0])
        for name, info in named:
            if info.flag_bits & 1:
                raise DataError(f"{path}: {name!r} is encrypted; unpack the archive and pass the folder")
            if stat.S_ISLNK(info.external_attr >> 16):
                raise DataError(f"{path}: {name!r} is a link; unpack the archive and pass the folder")
        self._infos = [info for _, info in named]
        self.paths = [name for name, _ in named]

    def __iter__(self) -> Iterator[File]:
        for info, path in zip(self._infos, self.paths, strict=True):
            size = info.file_size
            yield File(path, size, partial(_read, partial(self._zip.open, info), path, size, self._path))

    def __del__(self) -> None:
        """Close the archive."""
        if hasattr(self, "_zip"):
            self._zip.close()


def _is_plain_tar(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:"):
            return True
    except tarfile.ReadError:
        return False


_BROKEN = (*HEADER_ERRORS, EOFError, OSError, zlib.error, lzma.LZMAError)


def _regular(
    file: io.BufferedIOBase, where: Path, length: int | None = None
) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Files of an uncompressed tar, in order.

    Raises:
        DataError: It is damaged or truncated, or has a link, a device, or a path outside of it.
    """
    try:
        for info, tar in tar_members(file, length):
            path = _clean(info.name, where)
            if is_hidden(path):
                continue
            if not info.isreg() or info.issparse():
                raise DataError(
                    f"{where}: {path!r} is a link, device or sparse file; unpack the archive and pass the folder"
                )
            yield path, info, tar
    except _BROKEN as error:
        raise DataError(f"{where}: the archive is damaged ({error}); download it again") from error


def tar_places(path: Path, start: int = 0, size: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of every file in an uncompressed tar, or in a tar within it.

    Args:
        path: The tar.
        start: First byte of the tar within the file.
        size: Its length; None (default) = to the end of the file.

    Raises:
        DataError: It is not an uncompressed tar, is damaged or truncated, or has a link, a device, or a path outside of
            it.
    """
    with path.open("rb") as file:
        length = path.stat().st_size - start if size is None else size
        for name, info, _ in _regular(_Window(file, start, length), path, length):
            yield name, start + info.offset_data, info.size


class _Window(io.BufferedIOBase):
    """A file object that reads a part of another file."""

    def __init__(self, file: io.BufferedIOBase, start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length
        file.seek(start)

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._length}[whence]
        return self._file.seek(self._start + base + position) - self._start

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._length - self.tell())
        return self._file.read(left if size is None or size < 0 else min(size, left))


class _Tar:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = list(tar_places(path))
        self.paths = [name for name, _, _ in self._places]

    def __iter__(self) -> Iterator[File]:
        for path, offset, size in self._places:
            yield File(path, size, partial(_read, partial(self._open, offset), path, size, self._path))

    def _open(self, offset: int) -> IO[bytes]:
        file = self._path.open("rb")
        file.seek(offset)
        return file


class _CompressedTar:
    def __init__(self, path: Path, decompress: Decompress) -> None:
        self._path, self._decompress = path, decompress
        most = _FREE_FILES + path.stat().st_size // _BYTES_PER_FILE
        with decompress(path) as file:
            self.paths = [name for name, _, _ in islice(_regular(file, path), most + 1)]
        if len(self.paths) > most:
            raise DataError(
                f"{path}: expected at most {most:,} files in an archive of {path.stat().st_size:,} bytes,"
                " found more; if you trust the archive, unpack it and pass the folder"
            )

    def __iter__(self) -> Iterator[File]:
        with self._decompress(self._path) as file:
            for path, info, tar in _regular(file, self._path):
                yield _in_order(path, info, tar, self._path)


def _in_order(path: str, info: tarfile.TarInfo, tar: tarfile.TarFile, where: Path) -> File:
    member = cast(Callable[[], IO[bytes]], partial(tar.extractfile, info))  # not None for regular files
    return File(path, info.size, partial(_read, member, path, info.size, where), in_order=True)


def open_tars(
    source: str | Path, is_class: Callable[[str], bool], wanted: Collection[str] | None = None
) -> Files | None:
    """List the files of tars named by classes, in a folder or in a tar, as `<class>/<file>`; nothing is unpacked.

    Args:
        source: Folder of tars, or a tar of tars, which may be compressed. A compressed one is read from start to end
            for the list, and again for every iteration.
        is_class: Whether a name is a class.
        wanted: Classes to list; None (default) = all.

    Returns:
        The files; None if the source has another layout: its first file is not `<class>.tar`, or it is a folder with
        class folders.

    Raises:
        DataError: A tar is damaged or truncated, or a path occurs twice.
    """
    path = Path(source)
    found = _Tars(path, lambda name: is_class(name) and (wanted is None or name in wanted))
    first = PurePosixPath(next((name for name, *_ in found.outer()), ""))
    if first.suffix != ".tar" or not is_class(first.stem):
        return None
    if path.is_dir() and any(is_class(one.name) and one.is_dir() for one in path.iterdir()):
        return None
    found.paths = [path for path, _, _ in found.members()]
    if twice := repeated(found.paths):
        raise DataError(f"{source}: the tars of the classes contain {twice[0]!r} (class/file) twice; keep one copy")
    return found


class _Tars:
    def __init__(self, path: Path, wanted: Callable[[str], bool]) -> None:
        self._path, self._wanted = path, wanted
        self.paths: list[str] = []

    def outer(self) -> Iterator[tuple[str, Any, int, int]]:
        """Files of the source: name, an open file, and offset and size of their bytes in it."""
        if self._path.is_dir():
            found = sorted(self._path.glob("*.tar")) or sorted(self._path.glob("*/*.tar"))
            for tar in (path for path in found if not is_hidden(path.name)):
                with tar.open("rb") as file:
                    yield tar.name, file, 0, tar.stat().st_size
        elif self._path.is_file() and not zipfile.is_zipfile(self._path):
            with (decompressor(self._path) or (lambda path: path.open("rb")))(self._path) as file:
                for path, info, _ in _regular(file, self._path):
                    yield path, file, info.offset_data, info.size

    def members(self) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
        """Files of the wanted tars."""
        for path, file, start, size in self.outer():
            name = PurePosixPath(path).stem
            if path.endswith(".tar") and self._wanted(name):
                for inner, info, tar in _regular(_Window(file, start, size), self._path, size):
                    yield f"{name}/{inner}", info, tar

    def __iter__(self) -> Iterator[File]:
        return (_in_order(path, info, tar, self._path) for path, info, tar in self.members())
