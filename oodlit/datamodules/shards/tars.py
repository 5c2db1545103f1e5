"""Read tars strictly: Python's own reader stops without an error if a tar is truncated or damaged."""

import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from oodlit.datamodules.keys import printable

MAX_HEADER_BYTES = 2**20
"""Largest header of one file, with its extensions: Python reads them into memory whole."""
MAX_NAME = 4096
"""Most characters of the path of a file."""
_MAX_GLOBAL = 1000
HEADER_ERRORS = (tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError)
"""Errors that tarfile raises on bad headers."""
_LARGE_RECORDS = tuple(tarfile.BLOCKSIZE * 2**power for power in range(6, 12))
"""Record sizes that programs write on request, instead of the usual 10,240 bytes: 32 KiB to 1 MiB."""


def tar_members(file: Any, length: int | None = None) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield everything but folders in an uncompressed tar, in order.

    Args:
        file: The tar as a binary file, at its start. Only headers are read; the caller may read elsewhere in between.
        length: Bytes of the whole tar; None if unknown.

    Raises:
        tarfile.ReadError: The tar is damaged or truncated, data follow its end, or a header or name is too long.
    """
    reads = _LastRead(file)
    with tarfile.open(fileobj=cast(BinaryIO, reads), mode="r:") as tar:
        while (info := reads.next_member(tar)) is not None:
            tar.members = []  # type: ignore[attr-defined] # tarfile keeps every header otherwise
            if not info.isdir():
                yield info, tar
            _check_step(tar, info, length)
        if reads.last != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"it is damaged or truncated at byte {tar.offset}")
        # to the very end: a compressed file must also end well
        if fault := _tail_fault(file.read, tar.offset + tarfile.BLOCKSIZE):
            raise tarfile.ReadError(fault)


class _LastRead:
    """A file that remembers its last read, to check the end-of-archive marker, and limits the size of headers."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.last = b""
        self.seek, self.tell = file.seek, file.tell
        self._left: int | None = MAX_HEADER_BYTES  # `tarfile.open` reads the first header

    def read(self, size: int) -> bytes:
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise tarfile.ReadError(f"expected headers of at most {MAX_HEADER_BYTES:,} bytes, found a larger one")
        self.last = self._file.read(size)
        return self.last

    def next_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        self._left = MAX_HEADER_BYTES
        # Python 3.10 fails on archives without members.
        info = None if tar.offset == 0 and getattr(tar, "firstmember", None) is None else tar.next()
        self._left = None  # the caller reads the content of the file
        if len(tar.pax_headers) > _MAX_GLOBAL:
            raise tarfile.ReadError(f"expected at most {_MAX_GLOBAL:,} global entries in headers, found more")
        if info is not None and len(info.name) > MAX_NAME:
            raise tarfile.ReadError(f"expected names of at most {MAX_NAME:,} characters, got {len(info.name):,}")
        return info


def _check_step(tar: tarfile.TarFile, info: tarfile.TarInfo, length: int | None) -> None:
    """Check that the size of a member does not lead backwards, or beyond the end of a file of `length` bytes.

    Raises:
        tarfile.ReadError: It does.
    """
    if info.size < 0 or tar.offset <= info.offset or (length is not None and tar.offset > length):
        raise tarfile.ReadError(f"file {printable(info.name)!r} of {info.size} bytes is not complete")


def _tail_fault(read: Callable[[int], bytes], position: int) -> str | None:
    """Check that zeros follow the end-of-archive marker of a tar.

    Programs stop at the marker, so that anything after it would be ignored.

    Args:
        read: Continues to read after the first block of zeros.
        position: Number of bytes before it.

    Returns:
        The problem, or None.
    """
    zeros = tarfile.BLOCKSIZE
    while chunk := read(2**16):
        if rest := chunk.lstrip(b"\0"):
            return (
                f"data after the end-of-archive marker, at byte {position + len(chunk) - len(rest)}, would be"
                " ignored; if several archives were concatenated, pass them one by one"
            )
        zeros, position = zeros + len(chunk), position + len(chunk)
    if zeros < 2 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE:
        return None
    if position % tarfile.RECORDSIZE and any(
        position % size == 0 and zeros < 2 * tarfile.BLOCKSIZE + size for size in _LARGE_RECORDS
    ):
        return None
    return (
        f"it ends in {zeros} zero bytes, but a complete tar has fewer, so the download may be incomplete; if all files"
        " are complete, repack them with `tar`"
    )
