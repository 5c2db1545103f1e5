"""Check results in pytest: one test per detector and unit test, and one test per limit.

`oodlit_pytest`, the entry point, loads this module on demand.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oodlit.base.errors import OodlitError
from oodlit.base.roles import Role
from oodlit.results import Results
from oodlit.results.finished import load_complete
from oodlit.results.limits import Limit, crossings, describe_check, read_limits


class RunTests:
    """The plugin of a session with `--oodlit-run`.

    Args:
        config: Configuration of the session.

    Raises:
        pytest.UsageError: There is no run, it was interrupted, limits cannot be read, or a limit names something that
            the run does not have.
    """

    def __init__(self, config: pytest.Config) -> None:
        run, limits = config.option.oodlit_run, config.option.oodlit_limits
        if run is None:
            raise pytest.UsageError("--oodlit-limits FILE requires --oodlit-run DIR")
        try:
            self.results = load_complete(Path(run), allow_unfinished=config.option.oodlit_allow_unfinished)
            self.limits = [] if limits is None else read_limits(limits)
            crossings(self.results, self.limits)
        except OodlitError as error:
            raise pytest.UsageError(f"oodlit: {error}") from error
        self.folder = Path(run)

    @pytest.hookimpl(tryfirst=True)  # before -k and other plugins select tests
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the tests of the run."""
        group = _Group.from_parent(session, name=f"oodlit[{self.folder.name}]", nodeid=f"oodlit[{self.folder.name}]")
        for name, limit in self._named():
            items.append(_LimitItem.from_parent(group, name=name, results=self.results, limit=limit))

    def _named(self) -> Iterator[tuple[str, Limit]]:
        settings = self.results.settings
        for info in self.results.datasets:
            if info.role is not Role.UNIT_TEST:
                continue
            for detector in self.results.detectors:
                for test in info.class_names:
                    limit = Limit(detector, settings.fpr_name, ">", settings.unit_test_limit, info.name, test)
                    yield f"{detector}-{test}", limit
        for limit in self.limits:
            yield str(limit), limit


class _Group(pytest.Collector):
    """The parent of a run's tests."""

    def collect(self) -> list[pytest.Item]:
        """Collect nothing; `RunTests` adds the tests."""
        return []


class _Crossed(Exception):
    """Raised for a crossed limit; only its message is shown."""


class _LimitItem(pytest.Item):
    """A test that checks one limit."""

    def __init__(self, *, results: Results, limit: Limit, **rest: Any) -> None:
        super().__init__(**rest)
        self.results, self.limit = results, limit

    def runtest(self) -> None:
        """Check the limit; with -rA, the values are shown."""
        self.add_report_section("call", "limit", describe_check(self.results, self.limit))
        if found := crossings(self.results, [self.limit]):
            raise _Crossed("\n".join(map(str, found)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the values that cross the limit instead of a traceback."""
        expected = isinstance(excinfo.value, _Crossed | OodlitError)
        return str(excinfo.value) if expected else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Location of the test."""
        return self.path, None, self.name
