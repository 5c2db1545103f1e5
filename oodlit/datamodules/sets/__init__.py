"""The published data sets. Every `DatasetDescription` in a module of this package is one."""

import importlib
import pkgutil
from functools import cache

from oodlit.base.errors import UnknownNameError
from oodlit.datamodules.sets.description import DatasetDescription


@cache
def descriptions() -> dict[str, DatasetDescription]:
    """All known data sets by name, sorted.

    Example:
        >>> descriptions()["ninco"].expected_count
        5879
    """
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, DatasetDescription)]
    return {description.name: description for description in sorted(found, key=lambda d: d.name)}


def describe(name: str) -> DatasetDescription:
    """The data set with this name.

    Raises:
        UnknownNameError: There is none; the message suggests similar names.
    """
    known = descriptions()
    UnknownNameError.check("data set", name, known)
    return known[name]
