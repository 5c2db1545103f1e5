"""The published data sets. Every `DatasetDescription` in a module of this package is one."""

import importlib
import pkgutil
from functools import cache
from typing import Any

from oodlit.base.errors import UnknownNameError
from oodlit.base.plugins import DATASETS, Plugins, name_problem, plugins, working
from oodlit.datamodules.sets.description import DatasetDescription


@cache
def descriptions() -> dict[str, DatasetDescription]:
    """All known data sets by name, sorted, with those of plug-ins.

    Warns:
        PluginWarning: A plug-in cannot be used, once per process.

    Example:
        >>> descriptions()["ninco"].expected_count
        5879
    """
    return dict(sorted({**_built_in(), **working(DATASETS, _problem)}.items()))


def dataset_plugins() -> Plugins:
    """The data sets of plug-ins."""
    return plugins(DATASETS, _problem)


def _problem(name: str, item: Any) -> str:
    if not isinstance(item, DatasetDescription):
        return f"expected an oodlit.datamodules.DatasetDescription, got {type(item).__name__}"
    return name_problem(name, item.name, _built_in())


@cache
def _built_in() -> dict[str, DatasetDescription]:
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, DatasetDescription)]
    return {description.name: description for description in found}


def describe(name: str) -> DatasetDescription:
    """The data set with this name.

    Raises:
        UnknownNameError: There is none; the message suggests similar names.
    """
    known = descriptions()
    UnknownNameError.check("data set", name, known)
    return known[name]
