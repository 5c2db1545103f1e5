"""Options of oodlit in pytest. oodlit, and torch with it, are imported only if an option is given.

This module lies outside of the package for that reason: importing a part of a package imports the package.
"""

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--oodlit-run`, `--oodlit-limits` and `--oodlit-allow-unfinished`."""
    group = parser.getgroup("oodlit", "results of oodlit as tests")
    group.addoption("--oodlit-run", metavar="DIR", help="folder of results: one test per detector and unit test")
    group.addoption("--oodlit-limits", metavar="FILE", help="YAML file with limits under fail_if: one test per limit")
    group.addoption(
        "--oodlit-allow-unfinished", action="store_true", help="accept results of an interrupted run or a trial"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if an option is given."""
    if config.option.oodlit_run is None and config.option.oodlit_limits is None:
        return
    from oodlit.testing.pytest_run import RunTests  # noqa: PLC0415

    config.pluginmanager.register(RunTests(config), "oodlit-run")


@pytest.fixture
def oodlit_results(pytestconfig: pytest.Config) -> Any:
    """The `Results` of `--oodlit-run`; tests that use this fixture are skipped without the option."""
    plugin: Any = pytestconfig.pluginmanager.get_plugin("oodlit-run")
    if plugin is None:
        pytest.skip("requires the option --oodlit-run DIR")
    return plugin.results


@pytest.fixture
def oodlit_evaluate(tmp_path: Any) -> Any:
    """A function that evaluates a model within a test: `oodlit_evaluate(model, data, detectors)` returns `Results`."""
    from oodlit.callbacks.within_tests import evaluator  # noqa: PLC0415

    return evaluator(tmp_path)
