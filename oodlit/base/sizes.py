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


def check_parquet(where: object, source: Path | bytes, *, packed: int) -> None:
    """Refuse a Parquet file with content that is far too large for the size of the file; see `check_expansion`.

    Args:
        where: Names the file in messages.
        source: The file, or its content. Numbers are counted with 8 bytes; texts with all of their repetitions.
        packed: Size of the file in bytes.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes time
    from pyarrow import parquet  # noqa: PLC0415

    def opened(**options: Any) -> Any:
        return parquet.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source, **options)

    with opened() as file:
        about, names = file.metadata, set(file.schema_arrow.names)
    unpacked, repeated, columns = 0, 0, set()
    for number in range(about.num_row_groups):
        for place in range(about.num_columns):
            column, kind = about.row_group(number).column(place), about.schema.column(place)
            size = max(8 * column.num_values, column.total_uncompressed_size)
            unpacked += max(size, column.num_values * max(kind.length, 0))
            if column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in column.encodings):
                repeated += column.num_values * column.total_uncompressed_size
                columns.add(column.path_in_schema)
    check_expansion(where, packed=packed, unpacked=unpacked)
    if unpacked + repeated > max(ALWAYS_ALLOWED, MAX_RATIO * packed) and columns <= names:  # else lists of texts
        with opened(read_dictionary=sorted(columns)) as file:
            tables = (file.read_row_group(number, columns=sorted(columns)) for number in range(about.num_row_groups))
            repeated = sum(_length_of_texts(chunk) for table in tables for one in table.columns for chunk in one.chunks)
    check_expansion(where, packed=packed, unpacked=unpacked + repeated)


def _length_of_texts(chunk: Any) -> int:
    """Bytes of the texts of a `pyarrow.DictionaryArray`, with repetitions."""
    from pyarrow import compute  # noqa: PLC0415 - takes time

    return compute.sum(compute.take(compute.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a plain file, following links; refuse pipes, sockets and devices, which may never end.

    Raises:
        OSError: The file cannot be read, or it is of another kind.
    """
    kind = os.stat(path).st_mode  # noqa: PTH116 - a million paths
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # reading a folder fails anyway
        raise OSError("expected a plain file, got a pipe, socket or device")
    return Path(path).read_bytes()
