"""The conformance kit: does a detector keep the contract? And what tests of detectors are built from.

Names are loaded on first use. What needs hypothesis or pytest says so where they are missing:
`pip install 'oodlit[testing]'`.

- `check_detector`, `check_by_path`, `parametrize_with_checks`: run all checks on a detector.
- `checks()`: the checks themselves, plain functions of a factory.
- `oodlit.testing.strategies`: hypothesis strategies for outputs, heads, labelled training sets and extreme values.
- `oodlit.testing.backbones`: tiny networks with fixed arithmetic weights.
- `oodlit.testing.shards`: tiny images and shards, sound or damaged on purpose, for tests of whatever reads them.
- `separated_problem`, `signed_problem`: a tiny classifier with training, in-distribution and other outputs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oodlit.testing.conformance import check_by_path, check_detector, checks
    from oodlit.testing.problems import Problem, separated_problem, signed_problem
    from oodlit.testing.pytest_adapter import parametrize_with_checks
    from oodlit.testing.report import Report, Row
    from oodlit.testing.rules import ConformanceError, effort

__all__ = [
    "ConformanceError",
    "Problem",
    "Report",
    "Row",
    "check_by_path",
    "check_detector",
    "checks",
    "effort",
    "parametrize_with_checks",
    "separated_problem",
    "signed_problem",
]

_HOME = {
    "ConformanceError": "rules",
    "Problem": "problems",
    "Report": "report",
    "Row": "report",
    "check_by_path": "conformance",
    "check_detector": "conformance",
    "checks": "conformance",
    "effort": "rules",
    "parametrize_with_checks": "pytest_adapter",
    "separated_problem": "problems",
    "signed_problem": "problems",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"oodlit.testing.{_HOME[name]}"), name)
    raise AttributeError(f"module 'oodlit.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
