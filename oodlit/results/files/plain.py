"""Any value in the types of JSON."""

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np


def to_json(value: object) -> str:
    """`value` as the text of a JSON file."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_plain(value: object) -> Any:  # noqa: PLR0911
    """`value` in the types of JSON; NaN and infinities, which JSON lacks, become None and "Infinity" / "-Infinity".

    Example:
        >>> from pathlib import Path
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
