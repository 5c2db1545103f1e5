"""The conformance suite for detectors, and building blocks for tests of detectors.

Names are loaded on first use. Parts that require hypothesis or pytest need `pip install 'oodlit[testing]'`.

- `check_detector`, `parametrize_with_checks`: run all checks on a detector.
- `checks()`: the checks themselves, plain functions of a factory.
- `oodlit.testing.strategies`: hypothesis strategies for outputs, heads, labeled training sets and extreme values.
- `oodlit.testing.backbones`: a tiny network with fixed arithmetic weights.
- `separated_problem`, `signed_problem`: a tiny classifier with training, in-distribution and OOD outputs.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.testing.clauses import ConformanceError as ConformanceError
    from oodlit.testing.clauses import effort as effort
    from oodlit.testing.conformance import check_detector as check_detector
    from oodlit.testing.conformance import checks as checks
    from oodlit.testing.problems import Problem as Problem
    from oodlit.testing.problems import separated_problem as separated_problem
    from oodlit.testing.problems import signed_problem as signed_problem
    from oodlit.testing.pytest_adapter import parametrize_with_checks as parametrize_with_checks
    from oodlit.testing.report import Report as Report
    from oodlit.testing.report import Row as Row

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
