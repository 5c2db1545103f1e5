"""Results of a run: per-image scores, the tidy table of metrics, and the description of the run.

The names below are loaded on first use: what the metrics are can be told without loading what computes them.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oodlit.results.comparison import compare
    from oodlit.results.info import DatasetInfo, Settings
    from oodlit.results.results import Results
    from oodlit.results.scores import Scores

__all__ = ["DatasetInfo", "Results", "Scores", "Settings", "compare"]

_HOME = {
    "DatasetInfo": "info",
    "Results": "results",
    "Scores": "scores",
    "Settings": "info",
    "compare": "comparison",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"oodlit.results.{_HOME[name]}"), name)
    raise AttributeError(f"module 'oodlit.results' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
