"""Refuse files that would fill the memory: small files that unpack to huge ones, and files that never end."""

import os
import stat
from pathlib import Path
from typing import Any

from oodlit.base.errors import DataError

MAX_RATIO = 100
"""Largest ratio of unpacked to packed bytes; compressed scores and features stay far below it."""
ALWAYS_ALLOWED = 2**28
"""Unpacked bytes that are accepted at any ratio."""


def check_expansion(where: object, *, packed: int, unpacked: int) -> None:
    """Refuse a compressed file with content that is far too large for the size of the file.

    Args:
        where: Names the file in messages.
        packed: Size of the file in bytes.
        unpacked: Size of its content in bytes, according to the headers of the file.

    Raises:
        DataError: The content has more than 256 MiB, and more than 100 times the size of the file.

    Example:
        >>> check_expansion("a.npz", packed=10**6, unpacked=2 * 10**8)
        >>> check_expansion("a.npz", packed=10**6, unpacked=4 * 10**9)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        oodlit.base.errors.DataError: a.npz: expected at most 268,435,456 bytes of content in a file ...
    """
    limit = max(ALWAYS_ALLOWED, MAX_RATIO * packed)
    if unpacked > limit:
        raise DataError(
            f"{where}: expected at most {limit:,} bytes of content in a file of {packed:,} bytes, got {unpacked:,};"
            " if you trust the file, save it again without compression"
        )


def check_parquet(where: object, about: Any, *, packed: int) -> None:
    """Refuse a Parquet file with content that is far too large for the size of the file; see `check_expansion`.

    Args:
        where: Names the file in messages.
        about: Its `pyarrow.parquet.FileMetaData`. Values are counted with 8 bytes, or with their share of longer texts.
        packed: Size of the file in bytes.
    """
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    unpacked = sum(max(8 * column.num_values, column.total_uncompressed_size) for column in columns)
    check_expansion(where, packed=packed, unpacked=unpacked)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a plain file, following links; refuse pipes, sockets and devices, which may never end.

    Raises:
        OSError: The file cannot be read, or it is of another kind.
    """
    kind = os.stat(path).st_mode  # noqa: PTH116 - a million paths
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # reading a folder fails anyway
        raise OSError("expected a plain file, got a pipe, socket or device")
    return Path(path).read_bytes()
