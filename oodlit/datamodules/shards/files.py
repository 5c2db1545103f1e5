"""The files of a folder or archive, by path, without unpacking anything to disk."""

import lzma
import os
import tarfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from oodlit.datamodules.shards.members import MAX_MEMBER_BYTES
from oodlit.errors import DataError

__all__ = ["File", "Files", "open_files"]


@dataclass(frozen=True)
class File:
    """One file: its path within the source ("/" between parts), its length in bytes, and a way to read it."""

    path: str
    size: int
    read: Callable[[], bytes]
    in_order: bool = False
    """`read` works only until the next file is taken."""


@runtime_checkable
class Files(Protocol):
    """Files in a fixed order. Hidden files and `__MACOSX` are left out; links within an archive are errors."""

    @property
    @abstractmethod
    def paths(self) -> Sequence[str]:
        """Paths in the order of iteration."""

    @abstractmethod
    def __iter__(self) -> Iterator[File]:
        """The files; may be called again."""


def open_files(source: str | Path) -> Files:
    """List a folder, a .zip, a .tar, or a compressed tar (.tar.gz, .tgz, .tar.bz2, .tar.xz).

    Folders and zips are in the order of their paths, tars in the order of the archive. A compressed tar is read
    through once for the list and once per iteration; everything else is read at random.

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
        raise DataError(f"{path} does not exist; a folder, a .zip or a .tar (.gz, .bz2, .xz) is needed")
    if _is_plain_tar(path):  # asked first: a tar that ends in a zip passes for a zip
        return _Tar(path)
    if zipfile.is_zipfile(path):
        return _Zip(path)
    try:
        return _CompressedTar(path)
    except (tarfile.ReadError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{path} cannot be read as a .zip or .tar (.gz, .bz2, .xz): {error}; fetch the archive again"
        ) from error


def _is_junk(path: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def _read(read: Callable[[int], bytes], path: str, size: int, where: Path) -> bytes:
    if size > MAX_MEMBER_BYTES:
        raise DataError(f"{where}: {path!r} has {size} bytes; at most {MAX_MEMBER_BYTES} are read")
    try:
        data = read(size + 1)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{where}: {path!r} is damaged ({error}); fetch the archive again") from error
    if len(data) < size:
        raise DataError(f"{where}: truncated within {path!r}; fetch the archive again")
    return data[:size]


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found: list[str] = []
        above: dict[str, frozenset[str]] = {os.path.dirname(folder): frozenset()}  # noqa: PTH120
        for place, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
            real, parents = os.path.realpath(place), above[os.path.dirname(place)]  # noqa: PTH120
            if real in parents:  # a link back to a folder above
                folders.clear()
                continue
            above[place] = parents | {real}
            below = Path(place).relative_to(folder).as_posix()
            found.extend(name if below == "." else f"{below}/{name}" for name in names)
        self.paths = sorted(path for path in found if not _is_junk(path))

    def __iter__(self) -> Iterator[File]:
        for path in self.paths:
            full = self._folder / path
            try:
                size = full.stat().st_size
            except OSError as error:
                raise DataError(f"{full} cannot be read: {error}") from error
            yield File(path, size, lambda full=full, path=path, size=size: self._load(full, path, size))  # type: ignore[misc]

    def _load(self, full: Path, path: str, size: int) -> bytes:
        with full.open("rb") as file:
            return _read(file.read, path, size, self._folder)


def _raise(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed: {error}") from error


class _Zip:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise DataError(f"{path}: damaged zip ({error}); fetch the archive again") from error
        infos = [info for info in self._zip.infolist() if not info.is_dir() and not _is_junk(_plain(info.filename))]
        locked = next((info.filename for info in infos if info.flag_bits & 1), None)
        if locked is not None:
            raise DataError(f"{path}: {locked!r} is encrypted; unpack it with its password and pass the folder")
        self._infos = sorted(infos, key=lambda info: _plain(info.filename))
        self.paths = [_plain(info.filename) for info in self._infos]

    def __iter__(self) -> Iterator[File]:
        for info, path in zip(self._infos, self.paths, strict=True):
            yield File(path, info.file_size, lambda info=info, path=path: self._load(info, path))  # type: ignore[misc]

    def _load(self, info: zipfile.ZipInfo, path: str) -> bytes:
        try:
            with self._zip.open(info) as file:
                return _read(file.read, path, info.file_size, self._path)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self._path}: {path!r} cannot be read ({error}); fetch the archive again") from error

    def __del__(self) -> None:
        """Close the archive."""
        if hasattr(self, "_zip"):
            self._zip.close()


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _is_plain_tar(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:"):
            return True
    except tarfile.ReadError:
        return False


def _regular(tar: tarfile.TarFile, where: Path) -> Iterator[tarfile.TarInfo]:
    """Files of a tar; its members are forgotten as they pass."""
    try:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]
            path = _plain(info.name)
            if info.isdir() or _is_junk(path):
                continue
            if not info.isreg() or info.issparse():
                raise DataError(
                    f"{where}: {path!r} is a link, device or sparse file; unpack the archive and pass the folder"
                )
            yield info
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: the archive is damaged ({error}); fetch it again") from error


class _Tar:
    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            self._places = [(_plain(info.name), info.offset_data, info.size) for info in _regular(tar, path)]
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataError(f"{path}: the tar is damaged or truncated at byte {tar.offset}; fetch it again")
        self.paths = [path for path, _, _ in self._places]

    def __iter__(self) -> Iterator[File]:
        for path, offset, size in self._places:
            yield File(path, size, lambda path=path, offset=offset, size=size: self._load(path, offset, size))  # type: ignore[misc]

    def _load(self, path: str, offset: int, size: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return _read(file.read, path, size, self._path)


class _CompressedTar:
    def __init__(self, path: Path) -> None:
        self._path = path
        with tarfile.open(path, "r|*") as tar:
            self.paths = [_plain(info.name) for info in _regular(tar, path)]
            _check_end(tar, path)

    def __iter__(self) -> Iterator[File]:
        with tarfile.open(self._path, "r|*") as tar:
            for info in _regular(tar, self._path):
                path = _plain(info.name)
                yield File(path, info.size, lambda info=info, path=path: self._load(tar, info, path), in_order=True)  # type: ignore[misc]

    def _load(self, tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> bytes:
        file = tar.extractfile(info)
        assert file is not None  # regular files only
        return _read(file.read, path, info.size, self._path)


def _check_end(tar: tarfile.TarFile, where: Path) -> None:
    """The compressed stream must end by itself: reading on finds a cut or a wrong checksum."""
    stream = tar.fileobj
    assert stream is not None
    try:
        while stream.read(2**20):
            pass
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{where}: the archive is damaged at its end ({error}); fetch it again") from error
