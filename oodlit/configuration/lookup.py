"""Find classes and functions by dotted path, or by their short name if oodlit exports them."""

import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from oodlit.base.current_folder import import_module
from oodlit.base.errors import OodlitError, UsageError
from oodlit.base.lazy import import_hint
from oodlit.base.plugins import BENCHMARKS, DETECTORS, plugins
from oodlit.base.text.resolve import resolve
from oodlit.configuration.kinds import fits, type_names

PACKAGES = ("oodlit.datamodules", "oodlit.detectors")
"""Packages with classes and functions that can be written without their module."""
_PLUGINS = {"oodlit.datamodules": BENCHMARKS, "oodlit.detectors": DETECTORS}
"""Group of the plug-ins that are written like the exports of a package."""
_WORDS = {"Detector": "detector", "OODDataModule": "data class", "Logger": "logger"}


@cache
def short_names(packages: tuple[str, ...]) -> Mapping[str, str]:
    """Dotted path of every class and function that packages export, and of their plug-ins, by name."""
    found = {"OODModule": "oodlit.OODModule"}
    for package in map(importlib.import_module, packages):
        found |= {n: f"{package.__name__}.{n}" for n in package.__all__ if callable(getattr(package, n))}
    own = [plugins(_PLUGINS[package]).paths for package in packages if package in _PLUGINS]
    return {name: path for paths in own for name, path in paths.items()} | found


def find(path: str, kinds: tuple[type, ...], where: str, packages: tuple[str, ...]) -> tuple[str, Any]:
    """Import the class or function with this short name or dotted path, and return its full path with it.

    Args:
        path: The name; short names in any case, and display names of detectors, are accepted.
        kinds: Classes that are accepted here; suggestions are limited to them.
        where: How errors call the value.
        packages: See `short_names`.

    Raises:
        UnknownNameError: No package exports a short name like this.
        UsageError: The import fails.
    """
    names = short_names(packages)
    if "." not in names.get(path, path):
        for package in filter(_PLUGINS.get, packages):
            if problem := plugins(_PLUGINS[package]).problems.get(path):
                raise UsageError(f"{where}: {problem}")
        made = {name: located(full) for name, full in names.items()}
        known = {name: kind for name, kind in made.items() if fits(kind, kinds) and not inspect.isabstract(kind)}
        shown = {name: getattr(kind, "display_name", "") or name for name, kind in known.items()}
        path = resolve(_WORDS.get(type_names(kinds), "class or function"), path, shown or names)
    path = names.get(path, path)
    try:
        return path, located(path)
    except OodlitError:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{where}: cannot import {path} ({error}){import_hint(error)}") from error
    except Exception as error:  # a user's module can fail with anything
        raise UsageError(f"{where}: cannot import {path} ({described(error)})") from error


def located(path: str) -> Any:
    """Import the object at `module.name` or `module.Class.method`."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module or "." not in module:
            raise
        return getattr(located(module), name)


def described(error: Exception) -> str:
    """Describe an error in one line: its type and message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}"
