"""Read type annotations: find the classes in them, and convert values to their types."""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from inspect import Parameter
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonargparse

from oodlit.base.errors import UnknownNameError, UsageError
from oodlit.base.text.resolve import ObjectName

UNTYPED = (Any, object, Parameter.empty)
PLAIN = (str, bytes, int, float, list, tuple, dict, set, frozenset, NoneType, PurePath, Enum)
"""Types of values that a file can contain without conversion."""


def members(kind: Any) -> tuple[Any, ...]:
    """Return the member types of a union; for any other type, that type alone."""
    if get_origin(kind) is Annotated:
        return () if kind == ObjectName else members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(member for part in get_args(kind) for member in members(part))
    return (kind,)


def object_kinds(kind: Any) -> tuple[type, ...]:
    """Return the classes in a type that a configuration must build with a constructor."""
    types = (m for m in members(kind) if isinstance(m, type) and get_origin(m) is None and m not in UNTYPED)
    return tuple(m for m in types if not issubclass(m, PLAIN) and m.__module__ != "collections.abc")


def is_callable(kind: Any) -> bool:
    """Whether a type accepts functions."""
    return any((get_origin(member) or member) is Callable for member in members(kind))


def accepts_text(kind: Any) -> bool:
    """Whether a type accepts text without conversion."""
    return any(member in (str, Path) for member in members(kind))


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of the literals in a type."""
    return tuple(choice for member in members(kind) if get_origin(member) is Literal for choice in get_args(member))


def enum_of(kind: Any) -> type[Enum] | None:
    """Return the enum in a type that does not accept text."""
    found = (m for m in members(kind) if isinstance(m, type) and issubclass(m, Enum))
    return None if str in members(kind) else next(found, None)


def item_type(kind: Any, value: object) -> Any:
    """The type of the items of a list or dictionary; None if the value is neither, or the type does not accept it."""
    for member in members(kind) if isinstance(value, (list, dict)) else ():
        origin = get_origin(member)
        if member in UNTYPED:
            return Any
        if isinstance(origin, type) and isinstance(value, origin):
            return get_args(member)[-1 if isinstance(value, dict) else 0]
    return None


def fits(maker: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a class, or the annotated return type of a function, is a subclass of one of the given classes."""
    given = maker if isinstance(maker, type) else getattr(maker, "__annotations__", {}).get("return")
    with suppress(TypeError):  # protocols with attributes can only be checked on an object
        return not kinds or (isinstance(given, type) and issubclass(given, kinds))
    return True


def may_make(maker: Callable[..., Any], kinds: tuple[type, ...]) -> bool:
    """Whether a call of this class or function may make an object of the classes; nothing else is ever called.

    Functions need no return annotation, but those of the standard library, such as os.system, never qualify.
    """
    if isinstance(maker, type):
        return fits(maker, kinds)
    is_of_python = str(getattr(maker, "__module__", "")).partition(".")[0] in sys.stdlib_module_names
    given = getattr(maker, "__annotations__", {}).get("return")
    return not kinds or not (is_of_python or (isinstance(given, type) and not fits(maker, kinds)))


def is_a(made: object, kinds: tuple[type, ...]) -> bool:
    """Whether an object is an instance of one of the given classes."""
    with suppress(TypeError):  # a protocol for type checkers alone
        return not kinds or isinstance(made, kinds)
    return True


def enum_member(enum: type[Enum], name: str) -> Enum:
    """Return the enum member with this name or value.

    Raises:
        UnknownNameError: There is none.
    """
    known = {str(member.value): member for member in enum}
    if found := enum.__members__.get(name) or known.get(name.lower()):
        return found
    raise UnknownNameError.of(enum.__name__.lower(), name, known)


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert a value without objects to a type.

    Raises:
        UsageError: It cannot be converted.
    """
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    try:
        return parser.parse_object({"value": value})["value"]
    except jsonargparse.ArgumentError as error:
        if (known := choices(kind)) and not object_kinds(item_type(kind, [])):
            message = f"invalid value {shortened(value)}; choose one of {', '.join(map(repr, known))}"
            raise UsageError(f"{where}: {message}") from error
        classes = object_kinds(kind)
        names = [_type_name(m) for m in members(kind) if m is not NoneType and m not in classes]
        names += ["class_path and init_args"] if classes else []
        raise UsageError(f"{where}: expected {' or '.join(names)}, got {shortened(value)}") from error


def _type_name(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        items = " or ".join(_type_name(member) for member in members(get_args(kind)[-1]))
        return f"{'mapping' if issubclass(origin, Mapping) else 'list'} of {items}"
    return str(getattr(origin or kind, "__name__", kind))


def type_names(kinds: Iterable[type]) -> str:
    """Names of classes, for messages."""
    return " or ".join(kind.__name__ for kind in kinds)


def shortened(value: object) -> str:
    """A value in one line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
