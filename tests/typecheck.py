"""The type checker of the suite: beartype, with int accepted where float is said, as everywhere else in Python.

`jaxtyping` decorates every function of the package as it is imported (see pyproject.toml). Its own decorator binds the
arguments of every call to the signature and checks them twice, which takes ten times as long as beartype. A function
that names no shapes needs nothing but beartype; one that does, a scope in which the names of its axes hold.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype


class MismatchError(TypeError):
    """Says what it is in the words of jaxtyping."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Type-check error: {message}")


check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=MismatchError))
_thorough = jaxtyping.jaxtyped


def checked(decorated: Any = None, **options: Any) -> Any:
    """In place of `jaxtyping.jaxtyped`: a function or dataclass whose calls are checked."""
    if decorated is None:
        return functools.partial(checked, **options)
    if inspect.isclass(decorated):
        if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
            setattr(decorated, "__init__", checked(decorated.__init__, **options))  # noqa: B010
        return decorated
    if not inspect.isfunction(decorated) or inspect.isgeneratorfunction(decorated):
        return _thorough(decorated, **options)
    annotations = decorated.__annotations__.values()
    if any(map(_is_by_name, annotations)):
        return _thorough(decorated, **options)
    function: Callable[..., Any] = check(decorated)
    has_axes = any(map(_has_axes, annotations))

    @functools.wraps(decorated)
    def with_checks(*arguments: Any, **named: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return decorated(*arguments, **named)
        if not has_axes:
            return function(*arguments, **named)
        with _thorough("context"):
            return function(*arguments, **named)

    return with_checks


def _is_by_name(annotation: Any) -> bool:
    """Whether it names something that may be known to type checkers alone, which jaxtyping then leaves out."""
    return isinstance(annotation, str) or "ForwardRef(" in repr(annotation)


def _has_axes(annotation: Any) -> bool:
    is_array = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_array or any(map(_has_axes, get_args(annotation)))


setattr(jaxtyping, "jaxtyped", checked)  # noqa: B010
