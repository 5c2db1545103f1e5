"""oodlit: find out what a trained image classifier should refuse.

The names below are loaded on first use, so that `import oodlit` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING

from oodlit._version import __version__

if TYPE_CHECKING:
    from oodlit.module import OODModule
    from oodlit.outputs import Head, Outputs
    from oodlit.results import Results
    from oodlit.roles import Role

__all__ = ["Head", "OODModule", "Outputs", "Results", "Role", "__version__"]

_HOME = {
    "Head": "oodlit.outputs",
    "OODModule": "oodlit.module",
    "Outputs": "oodlit.outputs",
    "Results": "oodlit.results",
    "Role": "oodlit.roles",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'oodlit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
