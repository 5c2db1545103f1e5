"""Classes and settings as plain values: the dotted path of a class, and the arguments of its constructor."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

from oodlit.errors import InvalidArgumentError

__all__ = ["from_config", "import_class", "public_path", "settings_from_config"]

T = TypeVar("T")


def public_path(kind: type) -> str:
    """The shortest dotted path that leads to a class: files move within a package, what a package exports does not.

    Example:
        >>> from oodlit.detectors import KNN
        >>> public_path(KNN)
        'oodlit.detectors.KNN'
    """
    parts = kind.__module__.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if getattr(sys.modules.get(package), kind.__qualname__, None) is kind:
            return f"{package}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def import_class(path: str, base: type[T]) -> type[T]:
    """The class at a dotted path, which must be a subclass of `base`.

    Raises:
        InvalidArgumentError: It cannot be imported, or is of another kind.
    """
    module_name, _, name = path.rpartition(".")
    try:
        kind = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: a path without a dot
        raise InvalidArgumentError(f"class {path!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InvalidArgumentError(f"{path!r} is not a subclass of {public_path(base)}")
    return kind


def from_config(config: Mapping[str, Any], base: type[T]) -> T:
    """The object that `class_path` and `init_args` describe.

    Raises:
        InvalidArgumentError: The class cannot be imported, or is no subclass of `base`.
    """
    return import_class(config["class_path"], base)(**settings_from_config(config["init_args"], base))


def settings_from_config(settings: Mapping[str, Any], base: type[T]) -> dict[str, Any]:
    """Arguments of a constructor, in which class paths have become objects."""
    return {n: from_config(v, base) if isinstance(v, Mapping) and "class_path" in v else v for n, v in settings.items()}
