"""Results on disk: `table.csv`, `scores.parquet`, `run.json`; never half a result."""

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodlit.errors import DataError

__all__ = ["read", "to_plain", "write", "write_bytes", "write_text"]

TABLE, SCORES, RUN = "table.csv", "scores.parquet", "run.json"
_NUMBERS = ("value", "ci_low", "ci_high")
_COUNTS = ("n_id", "n_ood")


def write(directory: str | os.PathLike[str], *, table: pd.DataFrame, scores: pd.DataFrame, run: dict[str, Any]) -> Path:
    """Write a result: complete or not at all.

    A new directory appears by one rename. In a directory that exists, the files are replaced one by one, other files
    stay, and `run.json` comes last; it holds the checksums of the two others, so that `read` refuses a mixture.

    Args:
        directory: Where to; parents are made.
        table: The tidy table.
        scores: The per-image scores.
        run: Description of the run; numpy scalars, paths and tuples become plain, NaN becomes null.

    Returns:
        The directory.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir()
    try:
        table.to_csv(temporary / TABLE, index=False, lineterminator="\n")
        scores.to_parquet(temporary / SCORES, index=False)
        checksums = {name: _checksum(temporary / name) for name in (TABLE, SCORES)}
        text = json.dumps(to_plain(run | {"checksums": checksums}), indent=1, allow_nan=False, ensure_ascii=False)
        (temporary / RUN).write_text(text + "\n", encoding="utf-8")
        for name in (TABLE, SCORES, RUN):
            _fsync(temporary / name)
        if target.is_dir() and any(target.iterdir()):
            for name in (SCORES, TABLE, RUN):
                (temporary / name).replace(target / name)
        else:
            temporary.replace(target)
        _fsync(target)
        _fsync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def read(directory: str | os.PathLike[str]) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Read table, scores and run.

    Raises:
        DataError: A file is missing, unreadable, or does not belong to the others.
    """
    source = Path(directory)
    if missing := [name for name in (RUN, TABLE, SCORES) if not (source / name).is_file()]:
        raise DataError(f"{source}: no complete result, {', '.join(missing)} missing; a run writes them at its end")
    try:
        run = json.loads((source / RUN).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{source / RUN}: not readable as JSON ({error})") from error
    for name, checksum in run.pop("checksums", {}).items():
        if _checksum(source / name) != checksum:
            raise DataError(
                f"{source / name}: not the file that {RUN} was written with; it was changed, or saving was interrupted"
            )
    # As text first: the number parser of pandas is not exact in every version, Python's own is.
    table = pd.read_csv(source / TABLE, dtype=str, keep_default_na=False)
    for name in _NUMBERS:
        table[name] = [float(text) if text else math.nan for text in table[name]]
    table = table.astype(dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(_COUNTS, "int64"))
    return table, pd.read_parquet(source / SCORES), run


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write one text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write one file atomically: temporary sibling, fsync, rename."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def to_plain(value: object) -> Any:  # noqa: PLR0911
    """`value` in the types of JSON; NaN and infinities, which JSON lacks, become None and "Infinity" / "-Infinity".

    Example:
        >>> to_plain({"a": (np.int64(1), float("nan")), "b": Path("x")})
        {'a': [1, None], 'b': 'x'}
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [to_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return str(value)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # a directory cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
