"""From what stands in a configuration to objects: names are checked first, then values converted, then objects made.

Classes and functions are given as `class_path` and `init_args`, those that oodlit makes public by their name alone.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonargparse
from typing_extensions import Unpack

from oodlit.errors import InvalidArgumentError, OodlitError, UnknownNameError, UsageError

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
"""What describes an object."""

_UNTYPED = (Any, object, inspect.Parameter.empty)
_PLAIN = (str, bytes, int, float, list, tuple, dict, set, frozenset, NoneType, PurePath, Enum)
"""Types of values that can be written as they are."""


@dataclass(frozen=True)
class Planned:
    """An object that is still to be made: all is known to be in order but what its constructor says."""

    path: str
    maker: Callable[..., Any]
    arguments: Mapping[str, Any] | None
    """None: `maker` is the object itself, a function that the run calls."""
    kinds: tuple[type, ...] = ()


def plan(value: Any, kind: Any, where: str) -> Any:
    """Check the names in a value, convert it to a type, and plan its objects.

    Args:
        value: What was written: text, numbers, lists and dictionaries.
        kind: The annotation of the parameter.
        where: What errors call the value, such as `--data`.

    Returns:
        The converted value, with a `Planned` in the place of each object.

    Raises:
        UnknownNameError: No class, function, argument or role has this name.
        UsageError: A value is not of the type, or something cannot be imported.
    """
    members = _members(kind)
    kinds, inner = _object_kinds(members), _inner(members, value)
    is_callable = _is_callable(members)
    if isinstance(value, str):
        enum = next((m for m in members if isinstance(m, type) and issubclass(m, Enum)), None)
        if enum and str not in members:
            return _member(enum, value)
        if is_callable or (kinds and not any(m in members for m in (str, Path))):
            found = _find(value, kinds, where)
            if is_callable and not isinstance(found, type):
                return Planned(value, found, None)
            value = {"class_path": value}
        elif inner_kinds := _object_kinds(_members(_inner(members, []))):
            _find(value, inner_kinds, where)
            raise UsageError(f"{where}: {value} is no list; write {where}=[{value}], or a list in the file")
    elif isinstance(value, dict) and "class_path" not in value and len(kinds) == 1 and is_dataclass(kinds[0]):
        value = {"class_path": f"{kinds[0].__module__}.{kinds[0].__qualname__}", "init_args": value}
    if isinstance(value, dict) and "class_path" in value and (kinds or is_callable or inner is Any):
        return _plan_object(value, kinds, where)
    if inner is not None and (_object_kinds(_members(inner)) or _is_callable(_members(inner)) or _is_nested(value)):
        if isinstance(value, dict):
            return {key: plan(item, inner, f"{where}.{key}") for key, item in value.items()}
        return [plan(item, inner, f"{where}[{index}]") for index, item in enumerate(value)]
    return _convert(value, kind, where)


def make(planned: Any) -> Any:
    """Make the objects that `plan` has planned.

    Raises:
        OodlitError: What a class of oodlit says about its arguments, as it says it; errors of other classes with the
            name of the class.
    """
    if not isinstance(planned, Planned):
        return _each(planned, make)
    if planned.arguments is None:
        return planned.maker
    arguments = make(planned.arguments)
    try:
        made = planned.maker(**arguments)
    except (OodlitError, OSError):
        raise
    except Exception as error:
        refused = isinstance(error, (TypeError, ValueError, LookupError))
        raise (InvalidArgumentError if refused else OodlitError)(_told(planned.path, error)) from error
    if not _is_a(made, planned.kinds):
        raise InvalidArgumentError(f"{planned.path} makes no {_names(planned.kinds)} but {_shown(made)}")
    return made


def spell_out(planned: Any) -> Any:
    """What `plan` gave as plain values for a file, with full paths and with the arguments that were left out."""
    if isinstance(planned, Planned):
        if planned.arguments is None:
            return planned.path
        typed = {name: p for name, p in _parameters(planned.maker).items() if p.annotation not in _UNTYPED}
        defaults = {name: p.default for name, p in typed.items() if isinstance(p.default, _PLAIN)}
        arguments = {name: spell_out(value) for name, value in {**defaults, **planned.arguments}.items()}
        return {"class_path": planned.path, **({"init_args": arguments} if arguments else {})}
    if isinstance(planned, (PurePath, Enum)):
        return planned.name if isinstance(planned, Enum) else str(planned)
    if isinstance(planned, type):
        return f"{planned.__module__}.{planned.__qualname__}"
    return _each(list(planned) if isinstance(planned, (tuple, set, frozenset)) else planned, spell_out)


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """What a list or dictionary holds, each through a function; other values as they are."""
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    return [function(item) for item in value] if isinstance(value, list) else value


def _plan_object(value: Mapping[str, Any], kinds: tuple[type, ...], where: str) -> Planned:
    """The object of a `class_path`, once its name, its kind and its arguments are in order."""
    path, arguments = value["class_path"], value.get("init_args") or {}
    if not isinstance(path, str):
        raise UsageError(f"{where}: class_path {_shown(path)} is no name of a class")
    if odd := [str(key) for key in value if key not in CLASS_KEYS]:
        raise UnknownNameError.of(f"key beside class_path {path},", odd[0], CLASS_KEYS)
    maker = _find(path, kinds, where)
    path = _short_names().get(path, path)
    if not callable(maker):
        raise UsageError(f"{where}: {path} is neither a class nor a function")
    if not _may_make(maker, kinds):
        raise UsageError(f"{where}: {path} is no {_names(kinds)}")
    if not isinstance(arguments, dict):
        raise UsageError(f"{where}: init_args of {path} is {_shown(arguments)}; names with values are needed")
    parameters = _parameters(maker)
    if unknown := [str(name) for name in arguments if name not in parameters]:
        _check_passed_on(unknown, maker, path)
    arguments = {**arguments, **(value.get("dict_kwargs") or {})}  # for `**kwargs` that nobody can look into
    if missing := [n for n, p in parameters.items() if p.default is p.empty and n not in arguments]:
        raise UsageError(f"{where}: {path} needs {', '.join(missing)} in init_args")
    planned = {
        name: plan(item, parameters[name].annotation if name in parameters else Any, f"{where}.{name}")
        for name, item in arguments.items()
    }
    return Planned(path, maker, planned, kinds)


def _short_names() -> dict[str, str]:
    """Dotted path of every class and function that may be written without its module."""
    found = {"OODModule": "oodlit.OODModule"}
    for name in ("oodlit.datamodules", "oodlit.detectors", "oodlit.cli.running.loggers"):
        package = importlib.import_module(name)
        found |= {n: f"{name}.{n}" for n in package.__all__ if callable(getattr(package, n))}
    return found


def _find(path: str, kinds: tuple[type, ...], where: str) -> Any:
    """The class or function of a short name or a dotted path."""
    names = _short_names()
    if "." not in names.get(path, path):
        known = [
            n for n, full in names.items() if _fits(_located(full), kinds) and not inspect.isabstract(_located(full))
        ]
        word = {"Detector": "detector", "OODDataModule": "data class", "Logger": "logger"}.get(
            _names(kinds), "class or function"
        )
        raise UnknownNameError.of(word, path, known or names)
    try:
        return _located(names.get(path, path))
    except OodlitError:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{where}: {path}: {error}") from error
    except Exception as error:  # the module is the user's own
        raise UsageError(_told(f"{where}: {path} cannot be imported", error)) from error


def _located(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module or "." not in module:
            raise
        return getattr(_located(module), name)  # what belongs to a class: module.Class.method


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by name."""
    try:
        every = inspect.signature(maker, eval_str=True).parameters
    except (TypeError, ValueError, NameError):
        return {}
    named = {n: p for n, p in every.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    passed_on = {
        n
        for p in every.values()
        if get_origin(p.annotation) is Unpack
        for n in get_args(p.annotation)[0].__annotations__
    }
    for base in maker.__mro__[1:] if passed_on and isinstance(maker, type) else ():
        named |= {n: p for n, p in _parameters(base).items() if n in passed_on - named.keys()}
    return {n: p.replace(annotation=Any) if p.annotation is p.empty else p for n, p in named.items()}


def _check_passed_on(names: Iterable[str], maker: Callable[..., Any], path: str) -> None:
    """Names that are not in the signature can be in the one of a base class, where `**kwargs` passes them on."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(maker, type) else parser.add_function_arguments
    with suppress(ValueError):  # the constructor says what it knows where its source cannot be read
        known = add(maker, fail_untyped=False)
        for name in names:
            if not known:
                raise UnknownNameError(f"{path} takes no arguments, {name!r} is given")
            if name not in known:
                raise UnknownNameError.of(f"argument of {path}", name, known)


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; those of one that is no union are itself."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(member for part in get_args(kind) for member in _members(part))
    return (kind,)


def _object_kinds(members: Iterable[Any]) -> tuple[type, ...]:
    """Those of the types that have to be made from a class."""
    types = (m for m in members if isinstance(m, type) and get_origin(m) is None and m not in _UNTYPED)
    return tuple(kind for kind in types if not issubclass(kind, _PLAIN) and kind.__module__ != "collections.abc")


def _is_callable(members: Iterable[Any]) -> bool:
    return any((get_origin(member) or member) is Callable for member in members)


def _inner(members: Iterable[Any], value: object) -> Any:
    """The type of what a list or dictionary holds; None = the value is neither, or may not be."""
    for member in members if isinstance(value, (list, dict)) else ():
        origin = get_origin(member)
        if member in _UNTYPED:
            return Any
        if isinstance(origin, type) and isinstance(value, origin):
            return get_args(member)[-1 if isinstance(value, dict) else 0]
    return None


def _is_nested(value: Any) -> bool:
    """Whether objects are described within a list or dictionary."""
    if isinstance(value, dict):
        return "class_path" in value or any(_is_nested(item) for item in value.values())
    return isinstance(value, list) and any(_is_nested(item) for item in value)


def _fits(maker: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a class, or what a function says it returns, is of one of the kinds."""
    given = maker if isinstance(maker, type) else getattr(maker, "__annotations__", {}).get("return")
    with suppress(TypeError):  # protocols with attributes are looked at once there is an object
        return not kinds or (isinstance(given, type) and issubclass(given, kinds))
    return True


def _may_make(maker: Callable[..., Any], kinds: tuple[type, ...]) -> bool:
    """Whether a class is of one of the kinds, or a function may give one; nothing else is ever called.

    Functions need not say what they return, but those of Python's own library, such as os.system, give no such object.
    """
    if isinstance(maker, type):
        return _fits(maker, kinds)
    is_of_python = str(getattr(maker, "__module__", "")).partition(".")[0] in sys.stdlib_module_names
    given = getattr(maker, "__annotations__", {}).get("return")
    return not kinds or not (is_of_python or (isinstance(given, type) and not _fits(maker, kinds)))


def _is_a(made: object, kinds: tuple[type, ...]) -> bool:
    with suppress(TypeError):  # protocols that are for type checkers alone
        return not kinds or isinstance(made, kinds)
    return True


def _member(enum: type[Enum], name: str) -> Enum:
    known = {str(member.value): member for member in enum}
    if found := enum.__members__.get(name) or known.get(name.lower()):
        return found
    raise UnknownNameError.of(enum.__name__.lower(), name, known)


def _convert(value: Any, kind: Any, where: str) -> Any:
    """A value without objects as the type that is asked for."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    try:
        return parser.parse_object({"value": value})["value"]
    except jsonargparse.ArgumentError as error:
        members = _members(kind)
        if choices := [repr(choice) for m in members if get_origin(m) is Literal for choice in get_args(m)]:
            raise UsageError(f"{where}: {_shown(value)} is none of {', '.join(choices)}") from error
        names = [_type_name(m) for m in members if m is not NoneType and m not in _object_kinds(members)]
        names += ["class_path and init_args"] if _object_kinds(members) else []
        raise UsageError(f"{where}: {_shown(value)} is not of type {' or '.join(names)}") from error


def _type_name(kind: Any) -> str:
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        held = " or ".join(_type_name(member) for member in _members(get_args(kind)[-1]))
        return f"{'mapping' if issubclass(origin, Mapping) else 'list'} of {held}"
    return str(getattr(origin or kind, "__name__", kind))


def _names(kinds: Iterable[type]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def _shown(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _told(subject: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{subject}: {type(error).__name__}{': ' if text else ''}{text}"
