"""What a detector says of itself."""

import inspect

from oodlit.detectors import Detector, Reference
from oodlit.detectors.base import NEEDS
from oodlit.detectors.statistics import Statistic
from oodlit.testing.contract.invariances import INVARIANCES
from oodlit.testing.problems import ProblemFactory
from oodlit.testing.rules import Factory, rule

__all__ = ["check_declarations"]


@rule(
    "declarations",
    "`needs`, `statistics`, `reference` and `invariances` are of the documented form, and arguments of the constructor"
    " are stored under their own names.",
)
def check_declarations(factory: Factory, problem: ProblemFactory) -> None:
    """Class attributes and settings."""
    detector = factory()
    assert isinstance(detector, Detector), f"the factory made {type(detector).__name__}, not a Detector"
    assert isinstance(detector.needs, frozenset), f"needs is {type(detector.needs).__name__}; a frozenset is needed"
    unknown = sorted(detector.needs - NEEDS)
    assert not unknown, f"unknown needs {unknown}; known: {', '.join(sorted(NEEDS))}"
    for kind in detector.statistics:
        assert isinstance(kind, type), f"statistics holds {kind!r}; classes are needed"
        assert issubclass(kind, Statistic), f"statistics holds {kind.__name__}, which is no Statistic"
    unknown = sorted(detector.invariances - INVARIANCES.keys())
    assert not unknown, f"unknown invariances {unknown}; known: {', '.join(sorted(INVARIANCES))}"
    reference = getattr(detector, "reference", None)
    assert isinstance(reference, Reference), "reference is missing; give oodlit.detectors.Reference(title, ...)"
    empty = [n for n in ("title", "authors", "venue", "url") if not getattr(reference, n)]
    assert not empty, f"the reference has no {', '.join(empty)}"
    assert detector.extra_passes >= 0, f"extra_passes is {detector.extra_passes}"
    parameters = inspect.signature(type(detector).__init__).parameters
    variable = [n for n, p in parameters.items() if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    own = type(detector).__init__ is not Detector.__init__
    assert not (own and variable), f"the constructor takes *{variable[0]}; name its arguments" if variable else ""
    assert repr(type(detector)(**detector.settings)) == repr(detector), "made again from its settings, it differs"
