"""The checks of the conformance suite by group. A new check is a function `check_<clause>` with `@clause`."""

from oodlit.testing.clauses import Check
from oodlit.testing.contract import (
    declarations,
    degenerate,
    fits,
    invariances,
    other_processes,
    scores,
    sharing,
    side_effects,
)

__all__ = ["CHECKS"]

_FILES = (declarations, degenerate, fits, invariances, other_processes, scores, sharing, side_effects)
CHECKS: dict[str, Check] = {
    name: value for file in _FILES for name, value in vars(file).items() if name.startswith("check_")
}
"""All checks by name."""
