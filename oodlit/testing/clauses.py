"""Clauses of the detector contract, and the decorator that turns functions into checks."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from oodlit.base.errors import MissingExtraError, OodlitError
from oodlit.base.outputs import Head
from oodlit.detectors import Detector
from oodlit.testing.problems import ProblemFactory, import_extra, separated_problem
from oodlit.testing.shorten import shorten

T = TypeVar("T")
Factory: TypeAlias = Callable[[], Detector]
"""Returns a new, unfitted detector on every call, such as a class whose constructor has no required arguments."""


@runtime_checkable
class Check(Protocol):
    """A `check_<clause>` function.

    It returns None if the detector satisfies the clause, or if the clause does not apply to it.
    """

    __name__: str

    def __call__(self, factory: Factory, problem: ProblemFactory = separated_problem) -> None:
        """Raise `ConformanceError` if the detector violates the clause."""


class Clause(NamedTuple):
    """A clause of the detector contract.

    Args:
        id: Short name, for example `fit-batches`.
        text: The clause itself.
        applies: Why it does not apply to a detector; empty if it does.
    """

    id: str
    text: str
    applies: Callable[[Detector], str]


class ConformanceError(OodlitError, AssertionError):
    """A detector violates a clause of the contract; the message has clause, finding and how to declare an exemption.

    Its cause is the error of the check.
    """


class MalformedError(AssertionError):
    """A detector's declarations are malformed, so no check can run."""


_CLAUSES: dict[str, Clause] = {}
_EXAMPLES: ContextVar[int] = ContextVar("oodlit_testing_examples", default=10)
_OF_HEAD = {*dir(Head), *(field.name for field in fields(Head))} - {*dir(None)}
_NOT_OWN = ("oodlit.detectors.contract", "torch", "builtins", "abc", "typing")
"""Beginnings of modules whose classes are not the detector's own code."""
_SMALLEST = "_oodlit_smallest_example"
_PEERS: ContextVar[tuple[Factory, ...]] = ContextVar("oodlit_testing_peers", default=())


def clause(
    clause_id: str, text: str, *, applies: Callable[[Detector], str] | None = None
) -> Callable[[Callable[..., None]], Check]:
    """Turn a function into the check of a clause: failures name the clause, and detectors it does not apply to pass.

    Example:
        >>> @clause("no-vowel", "No detector is called Aeiou.")
        ... def check_no_vowel(factory, problem):
        ...     assert type(factory()).__name__ != "Aeiou", "it is"
        >>> from oodlit.detectors import MSP
        >>> check_no_vowel(MSP)
    """

    def decorate(function: Callable[..., None]) -> Check:
        checked = Clause(clause_id, text, applies or always)

        @functools.wraps(function)
        def check(factory: Factory, problem: ProblemFactory = separated_problem) -> None:
            detector = factory()
            if checked.applies(detector):
                return
            try:
                function(factory, problem)
            except MissingExtraError:
                raise  # hypothesis is not installed, so nothing was checked
            except Exception as error:
                raise ConformanceError(_message(detector, function.__name__, checked, error)) from error

        _CLAUSES[function.__name__] = checked
        return check

    return decorate


def clause_of(check: Check) -> Clause:
    """The clause of a check."""
    return _CLAUSES[check.__name__]


def always(detector: Detector) -> str:
    """For `Clause.applies`: the clause applies to every detector."""
    return ""


def fitted_on_training_data(detector: Detector) -> str:
    """For `Clause.applies`: the clause applies to detectors that use training images."""
    return "" if detector.required_statistics else "does not use training images"


def declares(invariance: str) -> Callable[[Detector], str]:
    """For `Clause.applies`: the clause applies to detectors that declare an invariance."""
    return lambda detector: "" if invariance in detector.invariances else f"does not declare {invariance!r}"


@contextmanager
def _given(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def effort(examples: int) -> AbstractContextManager[None]:
    """Set the number of random examples per property in checks (default: 10).

    Example:
        >>> with effort(examples=50):
        ...     number_of_examples()
        50
    """
    return _given(_EXAMPLES, examples)


def number_of_examples() -> int:
    """Number of random examples per property."""
    return _EXAMPLES.get()


def peers(factories: tuple[Factory, ...]) -> AbstractContextManager[None]:
    """Set the detectors that share the worker processes with the one under test."""
    return _given(_PEERS, factories)


def peers_of(factory: Factory) -> tuple[Factory, ...]:
    """Detectors that share the worker processes with `factory`; by default only `factory`."""
    named = _PEERS.get()
    return named if factory in named else (factory,)


def name_of(detector: Detector) -> str:
    """Name of a detector in tests and tables: its key with the changed settings.

    Example:
        >>> from oodlit.detectors import KNN
        >>> name_of(KNN(k=5))
        'knn[k=5]'
    """
    changed = detector.extra_repr()
    return detector.key() + (f"[{changed}]" if changed else "")


def root_of(error: BaseException) -> BaseException:
    """The first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def place_of(detector: Detector, error: BaseException) -> str:
    """Return file and line: the last line of the detector's own code before an error, else its class; "" if unknown.

    Example:
        >>> from oodlit.detectors import MSP
        >>> place_of(MSP(), ValueError()).partition(", in ")[2]
        'class MSP'
    """
    own = [kind for kind in type(detector).__mro__ if not kind.__module__.startswith(_NOT_OWN)]
    try:
        files = {inspect.getsourcefile(kind) for kind in own}
        lines, start = inspect.getsourcelines(type(detector))
    except (OSError, TypeError):  # defined in a console
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    start += next((number for number, line in enumerate(lines) if line.lstrip().startswith("class ")), 0)
    file, line, name = str(inspect.getsourcefile(type(detector))), start, f"class {type(detector).__name__}"
    if frames:
        file, line, name = frames[-1].filename, frames[-1].lineno or 0, frames[-1].name
    inside = Path(file).relative_to(Path.cwd()) if Path(file).is_relative_to(Path.cwd()) else file
    return f"{inside}:{line}, in {name}"


def _message(detector: Detector, check: str, clause: Clause, error: Exception) -> str:
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    finding = str(error).strip() or repr(error)
    if smallest := getattr(error, _SMALLEST, ""):
        finding += f"\n  smallest example: {smallest}"
    if _uses_undeclared_head(root_of(error)):
        finding += "\n  hint: `_fit` uses the head; add 'head' to `needs`, otherwise the head is None"
    if where := place_of(detector, root_of(error)):
        finding += f"\n  where: {where}"
    excuse = f"{{{check!r}: 'the reason'}}"
    broken = (
        f"{detector!r} violates clause {clause.id!r} of the detector contract: {clause.text}\n  found:"
        f" {kind}{finding}\n"
    )
    if isinstance(error, MalformedError):
        return f"{broken}  this check cannot be exempted, because all other checks require it"
    return (
        f"{broken}  to exempt this check (in Python only): check_detector(..., expected_failures={excuse})\n"
        f"    or parametrize_with_checks(..., expected_failures={{{name_of(detector)!r}: {excuse}}})"
    )


def _uses_undeclared_head(error: BaseException) -> bool:
    """Whether `_fit` uses the head, which is None because it is not in `needs`."""
    of_head = isinstance(error, AttributeError) and error.obj is None and error.name in _OF_HEAD
    called = isinstance(error, TypeError) and "'NoneType' object is not" in str(error)
    if not (of_head or called):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "_fit")
    given = ((f.f_locals.get("self"), f.f_locals.get("head", ...)) for f in frames)
    return any(isinstance(d, Detector) and head is None and "head" not in d.required_needs for d, head in given)


def examples(**strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run the decorated function immediately on deterministic examples of the strategies.

    Example:
        >>> from hypothesis import strategies as st
        >>> seen = []
        >>> @examples(n=st.integers(0, 3))
        ... def _(n):
        ...     seen.append(n)
        >>> len(seen) > 0
        True
    """
    hypothesis = import_extra("hypothesis")
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
        last: dict[str, Any] = {}

        @functools.wraps(function)
        def remembering(**drawn: Any) -> None:
            last.update(drawn)
            function(**drawn)

        try:
            settings(hypothesis.given(**strategies)(remembering))()
        except Exception as error:  # the last example is the smallest one that fails
            setattr(error, _SMALLEST, ", ".join(f"{name}={shorten(value)}" for name, value in last.items()))
            raise

    return run
