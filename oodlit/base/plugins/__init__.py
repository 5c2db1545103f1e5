"""Plug-ins: items of installed packages, which name them as entry points.

A package states its items in `pyproject.toml`, by the name that configurations and lists use:

    [project.entry-points."oodlit.detectors"]
    MyScore = "my_package:MyScore"
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from oodlit.base.text.resolve import plain
from oodlit.base.text.warn import warn

DETECTORS, DATASETS, BENCHMARKS, PUBLISHED = GROUPS = (
    "oodlit.detectors",
    "oodlit.datasets",
    "oodlit.benchmarks",
    "oodlit.published",
)
"""Groups of entry points."""


class PluginWarning(UserWarning):
    """A plug-in cannot be used; everything else works."""


class Plugins(NamedTuple):
    """The plug-ins of a group, each by its name.

    Args:
        items: What can be used.
        paths: Dotted path of each item.
        packages: Name of the package of each item.
        problems: Why others cannot be used.
    """

    items: dict[str, Any]
    paths: dict[str, str]
    packages: dict[str, str]
    problems: dict[str, str]


def usable(name: str, item: object) -> str:
    """Accept any item."""
    return ""


@cache
def plugins(group: str, problem_of: Callable[[str, Any], str] = usable) -> Plugins:
    """Load the plug-ins of a group, once per process.

    Args:
        group: One of `GROUPS`.
        problem_of: Function of name and item that returns why the item cannot be used; empty if it can.
    """
    found = Plugins({}, {}, {}, {})
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        package = entry.dist.name if entry.dist else "an unknown package"
        where = f"plug-in {entry.name!r} of {package} ({group})"
        twin = next((name for name in found.items if plain(name) == plain(entry.name)), None)
        try:
            item = entry.load()
        except Exception as error:  # the code of another package can fail with anything
            text = " ".join(f"{type(error).__name__}: {error}".split())
            found.problems[entry.name] = f"{where}: cannot load {entry.value} ({text})"
            continue
        problem = f"{found.packages[twin]} already has a plug-in of this name" if twin else problem_of(entry.name, item)
        if problem:
            found.problems.setdefault(entry.name, f"{where}: {problem}")
            continue
        found.items[entry.name], found.packages[entry.name] = item, package
        found.paths[entry.name] = entry.value.replace(":", ".")
    return found


@cache
def working(group: str, problem_of: Callable[[str, Any], str]) -> Mapping[str, Any]:
    """The items of a group; see `plugins`.

    Warns:
        PluginWarning: A plug-in cannot be used, once per process.
    """
    found = plugins(group, problem_of)
    for problem in found.problems.values():
        warn(problem, PluginWarning)
    return found.items


def name_problem(name: str, own: str, built_in: Mapping[str, object]) -> str:
    """Why an item cannot have its name; empty if it can.

    Args:
        name: Name of the entry point.
        own: Name that the item states itself.
        built_in: Names of oodlit's own items.

    Example:
        >>> name_problem("Knn", "Knn", {"KNN": 1})
        'oodlit already uses this name; choose another name'
        >>> name_problem("Mine", "Other", {})
        "expected the entry point to have the name of its item, 'Other'; rename the entry point"
    """
    if name != own:
        return f"expected the entry point to have the name of its item, {own!r}; rename the entry point"
    return "oodlit already uses this name; choose another name" if plain(name) in map(plain, built_in) else ""
