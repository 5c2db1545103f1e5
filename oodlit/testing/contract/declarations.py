"""Checks of a detector's declarations."""

import inspect
from collections.abc import Iterator
from typing import Any

from oodlit.base.errors import UnknownNameError
from oodlit.base.outputs import NEEDS
from oodlit.detectors import Detector, Reference
from oodlit.detectors.statistics import Statistic
from oodlit.testing.clauses import Factory, MalformedError, clause
from oodlit.testing.contract.invariances import INVARIANCES
from oodlit.testing.problems import ProblemFactory


@clause(
    "declarations",
    "Class attributes such as `needs`, `statistics`, `layers`, `reference` and `invariances` have the documented form,"
    " and constructor arguments are declared by name and stored under the same names.",
)
def check_declarations(factory: Factory, problem: ProblemFactory) -> None:
    """Check class attributes and settings."""
    detector = factory()
    assert isinstance(detector, Detector), f"expected the factory to return a Detector, got {type(detector).__name__}"
    if wrong := malformed(detector):
        raise MalformedError(wrong)
    unknown = sorted(detector.invariances - INVARIANCES.keys())
    assert not unknown, f"unknown invariances {', '.join(unknown)}; known: {', '.join(sorted(INVARIANCES))}"
    unnamed = sorted(detector.tuned_presets - detector.presets.keys())
    assert not unnamed, f"tuned_presets contains names that are missing from presets: {', '.join(unnamed)}"
    reference = getattr(detector, "reference", None)
    assert isinstance(reference, Reference), "the reference is missing; declare oodlit.detectors.Reference(title, ...)"
    empty = [n for n in ("title", "authors", "venue", "url") if not getattr(reference, n)]
    assert not empty, f"the reference has no {', '.join(empty)}"
    assert detector.extra_passes >= 0, f"extra_passes must be at least 0, got {detector.extra_passes}"
    parameters = inspect.signature(type(detector).__init__).parameters
    variable = [str(p).partition(":")[0] for p in parameters.values() if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    if variable and type(detector).__init__ is not Detector.__init__:
        raise AssertionError(f"the constructor accepts {variable[0]}; declare each argument by name")
    assert repr(type(detector)(**detector.settings)) == repr(detector), (
        "repr(type(detector)(**detector.settings)) differs from repr(detector); store each argument under its name"
    )


def malformed(detector: Detector) -> str:
    """Problems with declarations that every check relies on; empty if there are none.

    Example:
        >>> from oodlit.detectors import Energy
        >>> malformed(Energy())
        ''
    """
    everyone = [d for d in detector.modules() if isinstance(d, Detector)]
    return "; ".join(p if d is detector else f"{d!r} inside: {p}" for d in everyone for p in _problems(d))


def _problems(detector: Any) -> Iterator[str]:  # Any: the types of declarations are checked here
    kind = type(detector)
    needs = getattr(detector, "needs", None)
    if needs is None:
        yield f"needs is missing; declare a frozenset of any of these names: {', '.join(sorted(NEEDS))}"
    elif not isinstance(needs, frozenset):
        yield f"needs must be a frozenset of names, such as frozenset({{'logits'}}), not {needs!r}"
    else:
        yield from (str(UnknownNameError.of("need", str(name), NEEDS)) for name in sorted(needs - NEEDS, key=str))
    if not isinstance(detector.invariances, frozenset):
        yield f"invariances must be a frozenset of names, not {detector.invariances!r}"
    if not isinstance(detector.statistics, tuple):
        one = getattr(detector.statistics, "__name__", "ClassMoments")
        yield f"statistics must be a tuple of classes, such as ({one},), not {detector.statistics!r}"
    else:
        wrong = (s for s in detector.statistics if not (isinstance(s, type) and issubclass(s, Statistic)))
        yield from (f"statistics contains {s!r}, which is not a subclass of Statistic" for s in wrong)
    if not isinstance(kind.requirements, tuple) or not all(map(callable, kind.requirements)):
        one = getattr(kind.requirements, "__name__", "my_requirement")
        yield f"requirements must be a tuple of functions, such as ({one},), not {kind.requirements!r}"
    layers = detector.layers
    if not isinstance(layers, tuple) or not all(isinstance(name, str) for name in layers):
        one = layers if isinstance(layers, str) else "layer4"
        yield f"layers must be a tuple of names, such as ({one!r},), not {layers!r}"
