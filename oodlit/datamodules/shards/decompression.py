"""Decompress files strictly: Python's readers of bz2 and xz ignore unknown data after a member."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor
Decompress = Callable[[Path], io.BufferedIOBase]


def decompressor(path: Path) -> Decompress | None:
    """Find the opener of a compressed file by its first bytes; None if the format is unknown.

    The openers check the end and the checksum of every member, and refuse other bytes between and after members.
    """
    with path.open("rb") as file:
        start = file.read(6)
    known: dict[bytes, Decompress] = {
        b"\x1f\x8b": gzip.GzipFile,
        b"BZh": lambda path: io.BufferedReader(_Members(path, bz2.BZ2Decompressor)),
        b"\xfd7zXZ\x00": lambda path: io.BufferedReader(_Members(path, _xz)),
    }
    return next((opener for magic, opener in known.items() if start.startswith(magic)), None)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=2**30)  # the strongest setting of `xz` takes 65 MiB


class _Members(io.RawIOBase):
    """The content of all members of a compressed file, one after another.

    Raises:
        EOFError: The file ends within a member.
        OSError: Something other than a member follows (`lzma.LZMAError` for xz).
    """

    def __init__(self, path: Path, make: Callable[[], _Decompressor]) -> None:
        self._file, self._make = path.open("rb"), make
        self._member = make()
        self._position, self._rest = 0, b""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Return True: seeking is done by reading."""
        return True

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read up to `offset`, from the start if it is before the current position."""
        assert whence == io.SEEK_SET
        if offset < self._position:
            self._file.seek(0)
            self._member, self._position, self._rest = self._make(), 0, b""
        while self._position < offset and self._next(min(2**20, offset - self._position)):
            pass
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with the result of one decompression step."""
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        while True:
            if self._member.eof:
                rest = self._member.unused_data.lstrip(b"\0")  # xz allows zeros between members
                while not rest:
                    if not (chunk := self._file.read(2**16)):
                        return b""
                    rest = chunk.lstrip(b"\0")
                self._member, self._rest = self._make(), rest
            elif self._member.needs_input and not self._rest:
                self._rest = self._file.read(2**16)
                if not self._rest:
                    raise EOFError("the compressed file is truncated")
            data = self._member.decompress(self._rest, size)
            self._rest = b""
            if data:
                self._position += len(data)
                return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
