"""What a check is: a function of a detector factory that holds one clause of the contract."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from oodlit.detectors import Detector
from oodlit.errors import MissingExtraError, OodlitError
from oodlit.testing.extras import require
from oodlit.testing.problems import ProblemFactory, separated_problem

__all__ = [
    "Check",
    "Clause",
    "ConformanceError",
    "Factory",
    "always",
    "clause_of",
    "declares",
    "effort",
    "examples",
    "fitted_on_training_data",
    "number_of_examples",
    "peers",
    "peers_of",
    "rule",
]

Factory: TypeAlias = "Callable[[], Detector]"
"""Makes a fresh, unfitted detector on every call; a class whose constructor needs no argument is one."""


@runtime_checkable
class Check(Protocol):
    """A `check_<rule>` function.

    It returns None where the detector keeps the clause, or where the clause has nothing to say about it.
    """

    __name__: str

    def __call__(self, factory: Factory, problem: ProblemFactory = separated_problem) -> None:
        """Raise `ConformanceError` where the detector breaks the clause."""


@dataclass(frozen=True)
class Clause:
    """A clause of the detector contract.

    Args:
        id: Short name, for example `fit-batches`.
        text: The sentence.
        applies: Why it does not apply to a detector; empty where it does.
        starts_processes: True where the check starts processes; several detectors can then share one start.
    """

    id: str
    text: str
    applies: Callable[[Detector], str]
    starts_processes: bool = False


class ConformanceError(OodlitError, AssertionError):
    """A detector breaks a clause of the contract; the message names clause, finding and how to declare an exemption."""


_CLAUSES: dict[str, Clause] = {}
_EXAMPLES: ContextVar[int] = ContextVar("oodlit_testing_examples", default=10)
_PEERS: ContextVar[tuple[Factory, ...]] = ContextVar("oodlit_testing_peers", default=())


def rule(
    clause_id: str, text: str, *, applies: Callable[[Detector], str] | None = None, starts_processes: bool = False
) -> Callable[[Callable[..., None]], Check]:
    """Make a check of a function: failures name the clause, and detectors it does not concern pass.

    Example:
        >>> @rule("no-vowel", "No detector is called Aeiou.")
        ... def check_no_vowel(factory, problem):
        ...     assert type(factory()).__name__ != "Aeiou", "it is"
        >>> from oodlit.detectors import MSP
        >>> check_no_vowel(MSP)
    """

    def decorate(function: Callable[..., None]) -> Check:
        clause = Clause(clause_id, text, applies or always, starts_processes)

        @functools.wraps(function)
        def check(factory: Factory, problem: ProblemFactory = separated_problem) -> None:
            detector = factory()
            if clause.applies(detector):
                return
            try:
                function(factory, problem)
            except MissingExtraError:
                raise  # hypothesis is not installed: nothing was found out about the detector
            except Exception as error:
                raise ConformanceError(_message(repr(detector), function.__name__, clause, error)) from error

        _CLAUSES[function.__name__] = clause
        return check

    return decorate


def clause_of(check: Check) -> Clause:
    """The clause that a check holds."""
    return _CLAUSES[check.__name__]


def always(detector: Detector) -> str:
    """The clause concerns every detector."""
    return ""


def fitted_on_training_data(detector: Detector) -> str:
    """The clause concerns detectors that look at training images."""
    return "" if detector.required_statistics else "looks at no training image"


def declares(invariance: str) -> Callable[[Detector], str]:
    """The clause concerns detectors that declare an invariance."""
    return lambda detector: "" if invariance in detector.invariances else f"does not declare {invariance!r}"


@contextmanager
def effort(examples: int) -> Iterator[None]:
    """Number of random examples per property inside the checks (10 unless told).

    Example:
        >>> with effort(examples=50):
        ...     number_of_examples()
        50
    """
    token = _EXAMPLES.set(examples)
    try:
        yield
    finally:
        _EXAMPLES.reset(token)


def number_of_examples() -> int:
    """Number of random examples per property."""
    return _EXAMPLES.get()


@contextmanager
def peers(factories: tuple[Factory, ...]) -> Iterator[None]:
    """Detectors that share one start of processes with the one under test."""
    token = _PEERS.set(factories)
    try:
        yield
    finally:
        _PEERS.reset(token)


def peers_of(factory: Factory) -> tuple[Factory, ...]:
    """The detectors that share a start of processes with `factory`; itself alone if none were named."""
    named = _PEERS.get()
    return named if factory in named else (factory,)


_LONGEST_NOTE = 300


def _message(detector: str, check: str, clause: Clause, error: Exception) -> str:
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    finding = str(error).strip() or repr(error)
    # hypothesis notes on the error which example it was made smaller to; the words depend on its version.
    calls = (re.match(r"(Falsifying example|Failing test case): _\((.*)\)", n, re.DOTALL) for n in _notes(error))
    smallest = next((" ".join(call[2].split()) for call in calls if call), "")
    if smallest:
        finding += f"\n  smallest example: {smallest[:_LONGEST_NOTE]}"
    return (
        f"{detector} breaks clause {clause.id!r} of the detector contract: {clause.text}\n"
        f"  found: {kind}{finding}\n"
        f"  to exempt it: expected_failures={{{check!r}: 'the reason'}}"
    )


def _notes(error: Exception) -> list[str]:
    return list(getattr(error, "__notes__", []))


def examples(**strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run the decorated function at once on derandomised examples of the strategies.

    Example:
        >>> from hypothesis import strategies as st
        >>> seen = []
        >>> @examples(n=st.integers(0, 3))
        ... def _(n):
        ...     seen.append(n)
        >>> len(seen) > 0
        True
    """
    hypothesis = require("hypothesis")
    settings = hypothesis.settings(
        max_examples=number_of_examples(),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )

    def run(function: Callable[..., None]) -> None:
        settings(hypothesis.given(**strategies)(function))()

    return run
