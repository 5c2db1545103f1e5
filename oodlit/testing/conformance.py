"""Run all checks on one detector."""

from collections.abc import Callable, Mapping

from oodlit.base.current_folder import search_current_folder
from oodlit.base.errors import InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.base.lazy import import_object
from oodlit.detectors import BackboneFacts, Detector
from oodlit.detectors.contract.registry import find
from oodlit.testing.clauses import Check, ConformanceError, Factory, clause_of, effort, root_of
from oodlit.testing.contract import CHECKS
from oodlit.testing.contract.declarations import check_declarations, malformed
from oodlit.testing.problems import ProblemFactory, separated_problem
from oodlit.testing.report import Report, Row


def checks() -> dict[str, Check]:
    """All checks by name, in alphabetical order.

    Example:
        >>> "check_higher_is_id" in checks()
        True
    """
    return dict(sorted(CHECKS.items()))


def check_detector(
    factory: Factory,
    *,
    expected_failures: Mapping[str, str] | None = None,
    problem: ProblemFactory = separated_problem,
    examples: int = 10,
    only: str | None = None,
    after_check: Callable[[Row], object] = id,
) -> Report:
    """Run all checks on one detector.

    Args:
        factory: Returns a new detector on every call, for example the class itself.
        expected_failures: Known failures: reasons by check. A check that passes unexpectedly is reported.
        problem: A module-level function that builds the data; `signed_problem` has features of both signs.
        examples: Number of random examples per property, at least 1.
        only: Only run checks whose name contains this text.
        after_check: Called with the row of each check, for example to show progress.

    Returns:
        A report with one row per check. If one error makes several checks fail, it is shown in full once. If
        declarations such as `needs` are malformed, only `check_declarations` is run, and it fails. `raise_if_failed()`
        raises an error for failures; `str()` is a table.

    Raises:
        RequirementError: The detector does not apply to the problem at all.
        UnknownNameError: `expected_failures` names a check that does not exist.

    Example:
        >>> from oodlit.detectors import Energy
        >>> report = check_detector(Energy, only="score")
        >>> report.passed, [row.status for row in report.rows]
        (True, ['passed', 'passed'])
    """
    if examples < 1:
        raise InvalidArgumentError(f"check_detector: expected examples to be at least 1, got {examples}")
    known = checks()
    expected = dict(expected_failures or {})
    for name in expected:
        UnknownNameError.check("check", name, known)
    detector = make(factory)
    wanted = {name: check for name, check in known.items() if only is None or only in name}
    if malformed(detector):
        first = _run(check_declarations, factory, detector, problem, "", {})
        others = (check for name, check in wanted.items() if name != first.check)
        why = "the declarations are malformed"
        return Report(repr(detector), (first, *(Row(c.__name__, "not run", why, clause_of(c).id) for c in others)))
    refuse_if_not_applicable(detector, problem, problem().facts)
    rows: list[Row] = []
    reported: dict[str, str] = {}
    with effort(examples):
        for name, check in wanted.items():
            rows.append(_run(check, factory, detector, problem, expected.get(name, ""), reported))
            after_check(rows[-1])
    return Report(repr(detector), tuple(rows))


def import_factory(path: str) -> Factory:
    """The detector with this name, or the class or function at a dotted path; also in the working directory.

    Raises:
        InvalidArgumentError: There is none.
    """
    if not path.rpartition(".")[0]:
        try:
            return find(path)
        except UnknownNameError as error:
            raise InvalidArgumentError(
                f"{error}. To check your own detector, pass a dotted path such as my_module.MyDetector"
            ) from None
    search_current_folder()
    found = import_object(path, repr(path))
    if not callable(found):
        raise InvalidArgumentError(f"{path!r}: expected a Detector class or a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # `make` checks what it returns


def make(factory: Factory) -> Detector:
    """Create a new detector.

    Raises:
        InvalidArgumentError: The factory is a detector, requires arguments, or returns something else.
    """
    if isinstance(factory, Detector):
        raise InvalidArgumentError(
            f"expected a function that returns a new detector, got a detector; pass for example lambda: {factory!r}"
        )
    try:
        detector = factory()
    except TypeError as error:
        raise InvalidArgumentError(
            f"{factory!r} cannot create a detector: {error}. Expected a Detector class or a function that can be called"
            " without arguments"
        ) from error
    if not isinstance(detector, Detector):
        raise InvalidArgumentError(f"{factory!r} must return a Detector, got {detector!r}")
    detector.nested_detectors()  # refuses one whose constructor did not call super().__init__()
    return detector


def refuse_if_not_applicable(detector: Detector, problem: ProblemFactory, facts: BackboneFacts) -> None:
    """Raise a RequirementError if a detector does not apply to a problem with these facts."""
    if reason := detector.why_not(facts):
        raise RequirementError(
            f"{detector!r} does not apply to {problem.__name__}: it {reason}; pass another problem=... (in Python only)"
        )


def _run(
    check: Check, factory: Factory, detector: Detector, problem: ProblemFactory, excuse: str, reported: dict[str, str]
) -> Row:
    """Run one check; `reported` maps errors to the first check that reported them, and is updated."""
    clause, here = clause_of(check), f"{detector!r}: {check.__name__}"
    if (reason := clause.applies(detector)) and excuse:
        message = f"{here} does not apply, because the detector {reason}; remove it from expected_failures"
        return Row(check.__name__, "unexpected pass", message, clause.id)
    if reason:
        return Row(check.__name__, "not applicable", reason, clause.id)
    try:
        check(factory, problem)
    except ConformanceError as error:
        if excuse:
            return Row(check.__name__, "expected failure", excuse, clause.id)
        return Row(check.__name__, "failed", _reported_once(error, check, detector, reported), clause.id)
    if excuse:
        message = f"{here} was expected to fail ({excuse}), but it passes; remove it from expected_failures"
        return Row(check.__name__, "unexpected pass", message, clause.id)
    return Row(check.__name__, "passed", "", clause.id)


def _reported_once(error: ConformanceError, check: Check, detector: Detector, reported: dict[str, str]) -> str:
    """The message; a short one if an earlier check reported the same error."""
    root = root_of(error)
    text = f"{type(root).__name__}: {root}"
    earlier = next((name for known, name in reported.items() if known == text or known in str(error)), None)
    if earlier is not None:
        return f"{detector!r} violates clause {clause_of(check).id!r} with the same error as in {earlier}"
    if not isinstance(root, AssertionError):
        reported[text] = check.__name__
    return str(error)
