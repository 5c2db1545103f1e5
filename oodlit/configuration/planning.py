"""Check the names in a configuration and convert its values, before any object is made."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_origin

import jsonargparse
from typing_extensions import Unpack

from oodlit.base.errors import UnknownNameError, UsageError
from oodlit.base.text.resolve import names_in
from oodlit.configuration.kinds import (
    accepts_text,
    choices,
    convert,
    enum_member,
    enum_of,
    is_callable,
    item_type,
    may_make,
    members,
    object_kinds,
    shortened,
    type_names,
)
from oodlit.configuration.lookup import PACKAGES, find

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
"""Keys that describe an object."""


@dataclass(frozen=True)
class Planned:
    """An object to be built, with checked names and types.

    Args:
        path: Full dotted path of the class or function.
        maker: The class or function.
        arguments: Its arguments, converted; None = `maker` is itself the object, a function that the run calls.
        kinds: Classes that the object may be of.
    """

    path: str
    maker: Callable[..., Any]
    arguments: Mapping[str, Any] | None
    kinds: tuple[type, ...] = ()


def plan(value: Any, kind: Any, where: str, *, packages: tuple[str, ...] = PACKAGES) -> Any:
    """Check the names in a value, convert it to a type, and plan its objects.

    Args:
        value: Text, numbers, lists and dictionaries, as written.
        kind: The annotation of the parameter.
        where: How errors call the value, such as `--data`.
        packages: Packages whose exports can be written without their module.

    Returns:
        The converted value, with a `Planned` in place of each object.

    Raises:
        UnknownNameError: No class, function, argument or role has this name.
        UsageError: A value has the wrong type, or an import fails.
    """
    value = _split(value, kind)
    kinds, inner = object_kinds(kind), item_type(kind, value)
    if isinstance(value, str):
        if enum := enum_of(kind):
            return enum_member(enum, value)
        value = _named(value, kind, where, packages)
        if isinstance(value, Planned) or (isinstance(value, str) and kinds and str in members(kind)):
            return value
    elif isinstance(value, dict) and "class_path" not in value and len(kinds) == 1 and is_dataclass(kinds[0]):
        value = {"class_path": f"{kinds[0].__module__}.{kinds[0].__qualname__}", "init_args": value}
    if isinstance(value, dict) and "class_path" in value and (kinds or is_callable(kind) or inner is Any):
        return _plan_object(value, kinds, where, packages)
    if inner is not None and (object_kinds(inner) or is_callable(inner) or _is_nested(value)):
        if isinstance(value, dict):
            return {key: plan(item, inner, f"{where}.{key}", packages=packages) for key, item in value.items()}
        return [plan(item, inner, f"{where}[{index}]", packages=packages) for index, item in enumerate(value)]
    return convert(value, kind, where)


def _split(value: Any, kind: Any) -> Any:
    """Split names at commas, in types that accept a list of objects; a single name is a list of one."""
    if not object_kinds(item_type(kind, [])):
        return value
    if isinstance(value, str) and not accepts_text(kind) and value not in choices(kind):
        value = [value] if "," in value or not object_kinds(kind) else value
    is_list = isinstance(value, list)
    return [n for item in value for n in (names_in(item) if isinstance(item, str) else [item])] if is_list else value


def _named(text: str, kind: Any, where: str, packages: tuple[str, ...]) -> Any:
    """Interpret text as a function, as the description of an object, or as plain text."""
    kinds = object_kinds(kind)
    if text in choices(kind):
        return text
    if is_callable(kind) or (kinds and not accepts_text(kind)):
        text, found = find(text, kinds, where, packages)
        is_function = is_callable(kind) and not isinstance(found, type)
        return Planned(text, found, None) if is_function else {"class_path": text}
    return text


def _plan_object(value: Mapping[str, Any], kinds: tuple[type, ...], where: str, packages: tuple[str, ...]) -> Planned:
    """Check the class, the kind and the arguments of a `class_path`."""
    path, arguments = value["class_path"], value.get("init_args") or {}
    if not isinstance(path, str):
        raise UsageError(f"{where}: class_path must be the name of a class, got {shortened(path)}")
    if odd := [str(key) for key in value if key not in CLASS_KEYS]:
        raise UnknownNameError.of(f"key beside class_path {path}", odd[0], CLASS_KEYS)
    path, maker = find(path, kinds, where, packages)
    if not callable(maker):
        raise UsageError(f"{where}: expected {path} to be a class or a function, got {type(maker).__name__}")
    if not may_make(maker, kinds):
        raise UsageError(f"{where}: expected {type_names(kinds)}, got {path}")
    if not isinstance(arguments, dict):
        raise UsageError(f"{where}: init_args of {path} must map names to values, got {shortened(arguments)}")
    parameters = parameters_of(maker)
    if unknown := [str(name) for name in arguments if name not in parameters]:
        _check_passed_on(unknown, maker, path)
    arguments = {**arguments, **(value.get("dict_kwargs") or {})}  # for `**kwargs` that cannot be inspected
    if missing := [n for n, p in parameters.items() if p.default is p.empty and n not in arguments]:
        raise UsageError(f"{where}: {path} is missing init_args: {', '.join(missing)}")
    types = {name: parameters[name].annotation if name in parameters else Any for name in arguments}
    planned = {n: plan(a, types[n], f"{where}.{n}", packages=packages) for n, a in arguments.items()}
    return Planned(path, maker, planned, kinds)


def parameters_of(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name, including those that `Unpack` declares for `**kwargs`."""
    try:
        every = inspect.signature(maker, eval_str=True).parameters
    except (TypeError, ValueError, NameError):
        return {}
    named = {n: p for n, p in every.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unpacked = [get_args(p.annotation)[0] for p in every.values() if get_origin(p.annotation) is Unpack]
    passed_on = {name for options in unpacked for name in options.__annotations__}
    for base in maker.__mro__[1:] if passed_on and isinstance(maker, type) else ():
        named |= {n: p for n, p in parameters_of(base).items() if n in passed_on - named.keys()}
    return {n: p.replace(annotation=Any) if p.annotation is p.empty else p for n, p in named.items()}


def _check_passed_on(names: Iterable[str], maker: Callable[..., Any], path: str) -> None:
    """Look for unknown names in the signatures of base classes, to which `**kwargs` may be passed on."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(maker, type) else parser.add_function_arguments
    with suppress(ValueError):  # where the source cannot be read, the constructor itself must refuse them
        known = add(maker, fail_untyped=False)
        for name in names:
            if not known:
                raise UnknownNameError(f"{path} accepts no arguments, got {name!r}")
            UnknownNameError.check(f"argument of {path}", name, known)


def _is_nested(value: Any) -> bool:
    """Whether objects are described within a list or dictionary."""
    if isinstance(value, dict):
        return "class_path" in value or any(_is_nested(item) for item in value.values())
    return isinstance(value, list) and any(_is_nested(item) for item in value)
