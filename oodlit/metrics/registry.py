"""The metrics of the table: entries of all files from which `oodlit.metrics` exports something."""

import sys
from types import ModuleType

from oodlit import metrics
from oodlit.metrics.entry import MetricEntry


def entries(package: ModuleType = metrics) -> list[MetricEntry]:
    """Return all entries in the order of the table.

    Args:
        package: The package whose export list names the files.

    Example:
        >>> [entry.name for entry in entries() if entry.better == ""]
        ['accepted']
    """
    homes = dict.fromkeys(getattr(package, name).__module__ for name in package.__all__)
    found: list[MetricEntry] = [entry for home in homes for entry in getattr(sys.modules[home], "ENTRIES", ())]
    return sorted(found, key=lambda entry: entry.order)
