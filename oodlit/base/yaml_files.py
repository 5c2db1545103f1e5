"""Parse YAML files of users; reject duplicate keys and oversized content."""

from collections.abc import Callable
from typing import Any

import yaml  # type: ignore[import-untyped]

MAX_CHARACTERS = 10_000_000
MAX_DEPTH = 100
_UNDER_WAY = (0, 0)
MAX_VALUES = 1_000_000
"""Largest number of values after aliases (`*name`) are replaced: a few lines of them can stand for billions."""


def load_yaml(text: str, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    r"""Parse YAML.

    Args:
        text: Content of a file.
        load: Converts the text after it was checked.

    Raises:
        yaml.YAMLError: The text is not valid YAML, has a key twice in one mapping, or is too large; names the line.

    Example:
        >>> load_yaml("tpr: 0.9\nrule: attained")
        {'tpr': 0.9, 'rule': 'attained'}
        >>> load_yaml("tpr: 0.9\ntpr: 0.5")
        Traceback (most recent call last):
        yaml.constructor.ConstructorError: key 'tpr' occurs twice; the first one is on line 1
          in "<unicode string>", line 2, column 1:
            tpr: 0.5
            ^
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"expected at most {MAX_CHARACTERS:,} characters, got {len(text):,}")
    loader = yaml.SafeLoader(text)
    try:
        if (node := loader.get_single_node()) is not None:
            _count(node, {})
        return load(text)
    except RecursionError as error:
        raise yaml.YAMLError(f"expected at most {MAX_DEPTH} levels of nested lists and mappings") from error
    except (ValueError, OverflowError, AttributeError, TypeError) as error:  # such as a date without such a day
        raise yaml.YAMLError(f"a date or number cannot be read ({error}); put text in quotes") from error
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number and depth of values in a node, counting aliases in full; refuse keys that occur twice."""
    if known.get(id(node)) == _UNDER_WAY:
        raise yaml.constructor.ConstructorError(None, None, "a value contains itself through an alias", node.start_mark)
    if id(node) not in known:
        known[id(node)] = _UNDER_WAY
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value if isinstance(node, yaml.SequenceNode) else []
        counts = [_count(part, known) for part in parts]
        number, depth = 1 + sum(n for n, _ in counts), 1 + max((d for _, d in counts), default=0)
        for found, limit, what in ((number, MAX_VALUES, "values"), (depth, MAX_DEPTH, "nested levels")):
            if found > limit:
                expected = f"expected at most {limit:,} {what}, got {found:,}"
                message = f"{expected}; each use of an alias (*name) counts like a copy of its value"
                raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        known[id(node)] = number, depth
    return known[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = key.tag, key.value
        if name in seen:
            message = f"key {key.value!r} occurs twice; the first one is on line {seen[name]}"
            raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        seen[name] = key.start_mark.line + 1
