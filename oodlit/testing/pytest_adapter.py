"""The checks as pytest parameters. Requires `pip install 'oodlit[testing]'`."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.detectors import Detector
from oodlit.testing.clauses import Check, ConformanceError, Factory, clause_of, effort, name_of, peers
from oodlit.testing.conformance import checks, make, refuse_if_not_applicable
from oodlit.testing.contract.declarations import malformed
from oodlit.testing.problems import ProblemFactory, import_extra, separated_problem


def parametrize_with_checks(
    factories: Sequence[Factory],
    *,
    expected_failures: Mapping[str, Mapping[str, str]] | None = None,
    problem: ProblemFactory = separated_problem,
    examples: int = 10,
) -> Any:
    """Decorator that creates one test for every detector and every check that applies to it.

    The test function has the parameters `factory` and `check`, and calls `check(factory)`. Ids are like
    `knn[k=5]-check_refit`. All detectors of one decorator share worker processes. A detector with malformed
    declarations gets one test, which fails and explains why.

    Args:
        factories: Each returns a new detector on every call.
        expected_failures: Reasons by name of the detector (as in the ids) and check. Strict: an unexpected pass is a
            failure.
        problem: A module-level function that builds the data.
        examples: Number of random examples per property.

    Raises:
        InvalidArgumentError: Two detectors have the same name, or a check that is expected to fail does not apply.
        RequirementError: A detector does not apply to the problem.
        UnknownNameError: `expected_failures` names an unknown detector or check.

    Example:
        >>> from oodlit.detectors import MSP, Energy
        >>> @parametrize_with_checks([MSP, lambda: Energy(temperature=2.0)])
        ... def test_conformance(factory, check):
        ...     check(factory)
    """
    pytest = import_extra("pytest")
    excuses = {name: dict(reasons) for name, reasons in (expected_failures or {}).items()}
    named = _named(factories)
    for name, reasons in excuses.items():
        UnknownNameError.check("detector", name, named)
        for check_name in reasons:
            UnknownNameError.check("check", check_name, checks())
    facts = problem().facts
    parameters = []
    for name, (factory, detector) in named.items():
        wanted, own = checks(), excuses.get(name, {})
        if malformed(detector):  # no other check can run, and this one cannot be exempted
            wanted, own = {"check_declarations": wanted["check_declarations"]}, {}
        else:
            refuse_if_not_applicable(detector, problem, facts)
        for check_name, check in wanted.items():
            excuse = own.get(check_name, "")
            if (reason := clause_of(check).applies(detector)) and excuse:
                raise InvalidArgumentError(
                    f"parametrize_with_checks: {check_name} is expected to fail for {name!r}, but this check does"
                    f" not apply, because the detector {reason}; remove it from expected_failures"
                )
            if reason:
                continue
            marks = [pytest.mark.xfail(reason=excuse, strict=True, raises=ConformanceError)] if excuse else []
            bound = _bind(check, problem, tuple(factories), examples)
            parameters.append(pytest.param(factory, bound, id=f"{name}-{check_name}", marks=marks))
    return pytest.mark.parametrize(("factory", "check"), parameters)


def _named(factories: Sequence[Factory]) -> dict[str, tuple[Factory, Detector]]:
    named: dict[str, tuple[Factory, Detector]] = {}
    for factory in factories:
        detector = make(factory)
        name = name_of(detector)
        if name in named:
            raise InvalidArgumentError(f"parametrize_with_checks: two factories create detector {name!r}; remove one")
        named[name] = (factory, detector)
    return named


def _bind(
    check: Check, problem: ProblemFactory, everyone: tuple[Factory, ...], examples: int
) -> Callable[[Factory], None]:
    @wraps(check)
    def bound(factory: Factory) -> None:
        with effort(examples), peers(everyone):
            check(factory, problem)

    return bound
