"""The metrics of the table: entries of all files from which `oodlit.metrics` exports something."""

import sys

from oodlit import metrics
from oodlit.metrics.entry import Entry


def entries() -> list[Entry]:
    """Return all entries in the order of the table.

    Example:
        >>> [entry.name for entry in entries() if entry.better == ""]
        ['accepted']
    """
    homes = dict.fromkeys(getattr(metrics, name).__module__ for name in metrics.__all__)
    found: list[Entry] = [entry for home in homes for entry in getattr(sys.modules[home], "ENTRIES", ())]
    return sorted(found, key=lambda entry: entry.order)
