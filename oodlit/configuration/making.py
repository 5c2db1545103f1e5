"""Build the objects of a plan, and convert a plan back to plain values."""

from collections.abc import Callable
from enum import Enum
from pathlib import PurePath
from typing import Any

from oodlit.base.errors import InvalidArgumentError, OodlitError
from oodlit.configuration.kinds import PLAIN, UNTYPED, is_a, shortened, type_names
from oodlit.configuration.lookup import described
from oodlit.configuration.planning import Planned, parameters_of


def make(planned: Any) -> Any:
    """Make the objects of a plan.

    Raises:
        OodlitError: Errors of oodlit's classes as they are; those of other classes with the name of the class.
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
        kind = InvalidArgumentError if isinstance(error, (TypeError, ValueError, LookupError)) else OodlitError
        raise kind(f"{planned.path}: {described(error)}") from error
    if not is_a(made, planned.kinds):
        expected = f"{planned.path} must return an object of class {type_names(planned.kinds)}"
        raise InvalidArgumentError(f"{expected}, got {shortened(made)}")
    return made


def spell_out(planned: Any) -> Any:
    """Convert a plan to plain values, with full paths and default arguments."""
    if isinstance(planned, Planned):
        if planned.arguments is None:
            return planned.path
        typed = {name: p for name, p in parameters_of(planned.maker).items() if p.annotation not in UNTYPED}
        defaults = {name: p.default for name, p in typed.items() if isinstance(p.default, PLAIN)}
        arguments = {name: spell_out(value) for name, value in {**defaults, **planned.arguments}.items()}
        return {"class_path": planned.path, **({"init_args": arguments} if arguments else {})}
    if isinstance(planned, (PurePath, Enum)):
        return planned.name if isinstance(planned, Enum) else str(planned)
    if isinstance(planned, type):
        return f"{planned.__module__}.{planned.__qualname__}"
    return _each(list(planned) if isinstance(planned, (tuple, set, frozenset)) else planned, spell_out)


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the items of a list or dictionary; return any other value unchanged."""
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    return [function(item) for item in value] if isinstance(value, list) else value
