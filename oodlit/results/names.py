"""Valid names, and names of values for loggers that are safe for TensorBoard, CSV and W&B."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from oodlit.base.errors import InvalidArgumentError

MODEL = "model"
"""Entry of the column `detector` for values of the classifier alone."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]+")


def check_name(name: object, kind: str) -> None:
    """Raise unless `name` is one line of text, which tables, files, figures and loggers can show.

    Example:
        >>> check_name("Caracal caracal: caracal", "class")
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidArgumentError(f"{kind} name: expected text that is not empty, got {name!r}")
    # Control characters, halves of surrogate pairs (no UTF-8), and Unicode's own line and paragraph breaks.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in name):
        raise InvalidArgumentError(f"{kind} name {name!r}: line breaks, tabs and control characters are not allowed")


def some(names: Sequence[str], limit: int) -> str:
    """Join names, at most `limit` of them, and state how many more there are.

    Example:
        >>> some(["a", "b", "c"], 2), some(["a"], 2)
        ('a, b and 1 more', 'a')
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def settings_text(arguments: Mapping[str, Any]) -> str:
    """Format constructor arguments in one line, including those of nested detectors; None is left out.

    Example:
        >>> settings_text({"percentile": 90.0, "then": {"class_path": "oodlit.detectors.ViM", "init_args": {"dim": 5}}})
        'percentile=90.0, then=ViM(dim=5)'
    """
    parts = []
    for name, value in arguments.items():
        if isinstance(value, Mapping) and "class_path" in value:
            inner = settings_text(dict(value.get("init_args") or {}))
            parts.append(f"{name}={str(value['class_path']).rpartition('.')[2]}({inner})")
        elif value is not None:
            text = str(value)
            parts.append(f"{name}={text if len(text) <= 60 else text[:59] + '…'}")
    return ", ".join(parts)


def safe(name: str) -> str:
    """Replace everything but letters, digits, `_`, `.` and `-` by `_`.

    Example:
        >>> safe("high heels"), safe("Caracal caracal: caracal")
        ('high_heels', 'Caracal_caracal_caracal')
    """
    return _UNSAFE.sub("_", name.strip()) or "_"


def unused_heading(reason: str) -> str:
    """Heading of the detectors without scores for a reason: whether they could have been used.

    Example:
        >>> unused_heading("needs the linear head"), unused_heading("costs 2 extra forward passes per image")
        ('Not applicable', 'Not used')
    """
    return "Not used" if reason.startswith("cost") else "Not applicable"


def metric_names(table: pd.DataFrame) -> list[str]:
    """`<dataset>/<detector>/<metric>` for every row, and `.../<class>` for rows of a class; all distinct.

    Names that become equal by the replacement get `_2`, `_3`, ... in the order of the rows.
    """
    rows = table[["dataset", "detector", "metric", "ood_class"]].itertuples(index=False, name=None)
    return distinct("/".join(safe(str(part)) for part in row if part) for row in rows)


def distinct(names: Iterable[str], *, same: Callable[[str], str] = str) -> list[str]:
    """Make names distinct: a name that occurred before gets `_2`, `_3`, ....

    Args:
        names: In their order.
        same: Names with equal results of this function count as equal, such as `str.casefold`.

    Example:
        >>> distinct(["a", "b", "a", "a_2", "a"])
        ['a', 'b', 'a_2', 'a_2_2', 'a_3']
    """
    seen: dict[str, int] = {}
    found = []
    for given in names:
        name, key = given, same(given)
        seen[key] = count = seen.get(key, 0) + 1
        while count > 1 and same(f"{given}_{count}") in seen:
            count += 1
        if count > 1:
            name = f"{given}_{count}"
            seen[same(name)] = 1
        found.append(name)
    return found
