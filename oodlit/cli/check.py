"""`oodlit check`: test a custom detector against the detector contract."""

from oodlit.base.errors import UsageError


def check(detectors: list[str] | None = None, *, only: str | None = None, plugins: bool = False) -> int:
    """Test your own detector against the detector contract.

    With --plugins, the detectors of all installed plug-ins are tested, and data sets, benchmarks, and published
    tables of plug-ins are loaded. The exit code is 1 if a check fails. A detector takes about a minute.
    Requires: pip install 'oodlit[testing]'

    Args:
        detectors: names such as KNN, or dotted paths such as my.module.MyDetector
        only: run only checks with this text in their name
        plugins: also check all installed plug-ins
    """
    if not detectors and not plugins:
        raise UsageError("missing required argument: DETECTORS or --plugins")
    from importlib.util import find_spec

    from oodlit.base.errors import MissingExtraError, UnknownNameError

    if None in map(find_spec, ("hypothesis", "pytest")):  # before torch is imported, which takes seconds
        raise MissingExtraError.of("oodlit check", "testing")
    from oodlit.cli.console import progress_bar, say
    from oodlit.testing import check_detector, checks
    from oodlit.testing.conformance import import_factory

    if not (count := sum(only is None or only in name for name in checks())):
        raise UnknownNameError.of("check", str(only), checks())
    paths, failed = _plugins() if plugins else ([], 0)
    for path, factory in {path: import_factory(path) for path in [*(detectors or ()), *paths]}.items():
        with progress_bar(f"checking {path}", total=count) as advance:
            outcome = check_detector(factory, only=only, after_check=lambda _: advance(1))
        say(outcome)
        failed += not outcome.passed
    return int(failed > 0)


def _plugins() -> tuple[list[str], int]:
    """Print what is installed; return the dotted paths of detectors, and how many items cannot be used."""
    from oodlit.base.plugins import GROUPS
    from oodlit.cli.console import say
    from oodlit.datamodules.benchmarks.tables import benchmark_plugins
    from oodlit.datamodules.sets import dataset_plugins
    from oodlit.detectors.contract.registry import detector_plugins
    from oodlit.results.published import published_plugins

    groups = (detector_plugins(), dataset_plugins(), benchmark_plugins(), published_plugins())
    for group, found in zip(GROUPS, groups, strict=True):
        for name, package in found.packages.items():
            say(f"{group}: {name} (from {package})")
        for problem in found.problems.values():
            say(f"FAILED {problem}")
    if not any(found.items or found.problems for found in groups):
        say("no plug-ins are installed")
    return [*groups[0].paths.values()], sum(len(found.problems) for found in groups)
