"""JSON files: any value in the types of JSON, and records that are checked against a type when they are read."""

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from oodlit.base.errors import DataError

T = TypeVar("T")
MAX_DEPTH = 100
"""Default limit for nested lists and objects; deeper nesting is refused before recursive code fails."""


def read_json(
    path: Path, kind: type[T], *, max_bytes: int | None = None, max_depth: int = MAX_DEPTH, hint: str = ""
) -> T:
    """Read a JSON file as a value of a type, such as a `msgspec.Struct`.

    Args:
        path: The file. A byte order mark at its start is skipped.
        kind: The type that the content must have; `object` accepts any JSON.
        max_bytes: Largest size of the file; None = no limit.
        max_depth: Largest number of nested lists and objects.
        hint: Ends every message, such as "; record again".

    Raises:
        FileNotFoundError: There is no such file.
        DataError: The file is not readable, too large, not valid JSON, or an entry has another type; names the entry.
    """
    try:
        size = path.stat().st_size
        if max_bytes is not None and size > max_bytes:
            raise DataError(f"{path}: expected at most {max_bytes:,} bytes, got {size:,}{hint}")
        return parse_json(path.read_bytes(), kind, where=str(path), max_depth=max_depth, hint=hint)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: not readable ({error.strerror or error}){hint}") from error


def parse_json(data: bytes, kind: type[T], *, where: str, max_depth: int = MAX_DEPTH, hint: str = "") -> T:
    """Parse the content of a JSON file; `where` names it in messages. See `read_json`.

    Example:
        >>> Info = msgspec.defstruct("Info", [("images", int)])
        >>> parse_json(b'{"images": 3}', Info, where="info.json")
        Info(images=3)
    """
    try:
        # Python's parser and not that of msgspec: keys of images may hold halves of surrogate pairs.
        value = loads(data.decode("utf-8-sig", errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error}){hint}") from error
    if _depth(value) > max_depth:
        raise DataError(f"{where}: expected at most {max_depth} levels of nested lists and objects{hint}")
    return as_type(value, kind, where=where, hint=hint)


def loads(text: str | bytes) -> Any:
    """Like `json.loads`, but refuse an object with the same name twice, of which `json` would keep the last value.

    Raises:
        ValueError: The text is not valid JSON, or a name occurs twice.

    Example:
        >>> loads('{"tpr": 0.9, "tpr": 0.5}')
        Traceback (most recent call last):
        ValueError: name 'tpr' occurs twice
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"name {twice[:100]!r} occurs twice")
    return found


def as_type(value: object, kind: type[T], *, where: str, hint: str = "") -> T:
    """Convert plain JSON values to a type; `where` names them in messages.

    Raises:
        DataError: An entry is missing or has another type; names the entry.

    Example:
        >>> Info = msgspec.defstruct("Info", [("images", int)])
        >>> as_type({"images": "3"}, Info, where="info.json")
        Traceback (most recent call last):
        oodlit.base.errors.DataError: info.json: Expected `int`, got `str` - at `$.images`
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DataError(f"{where}: {error}{hint}") from error


def _depth(value: object) -> int:
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        inner = (part for v in level for part in (v.values() if isinstance(v, dict) else v))
        depth, level = depth + 1, [part for part in inner if isinstance(part, dict | list)]
    return depth


def checksums_of(entries: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of values in the types of JSON, by name; the order of names in a value does not count.

    Example:
        >>> checksums_of({"a": {"b": 1, "c": 2}}) == checksums_of({"a": {"c": 2, "b": 1}})
        True
    """
    texts = {name: json.dumps(value, sort_keys=True).encode() for name, value in entries.items()}
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}


def to_json(value: object) -> str:
    """Return `value` as the text of a JSON file."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_plain(value: object) -> Any:  # noqa: PLR0911
    """Convert `value` to the types of JSON. NaN becomes None; infinities become the texts "Infinity" and "-Infinity".

    Example:
        >>> from pathlib import Path
        >>> to_plain({"a": (np.int64(1), float("nan")), "b": Path("x")})
        {'a': [1, None], 'b': 'x'}
    """
    if isinstance(value, msgspec.Struct):
        return to_plain(msgspec.to_builtins(value, enc_hook=to_plain))
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
