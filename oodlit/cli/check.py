"""`oodlit check`: test a custom detector against the detector contract."""


def check(detectors: list[str], *, only: str | None = None) -> int:
    """Test your own detector against the detector contract.

    The exit code is 1 if a check fails. Requires: pip install 'oodlit[testing]'

    Args:
        detectors: dotted paths of classes, such as my.module.MyDetector
        only: run only checks with this text in their name
    """
    from importlib.util import find_spec

    from oodlit.base.errors import MissingExtraError, UnknownNameError

    if None in map(find_spec, ("hypothesis", "pytest")):  # before torch is imported, which takes seconds
        raise MissingExtraError.of("oodlit check", "testing")
    from oodlit.cli.console import say, status
    from oodlit.testing import check_by_path, checks

    if only is not None and not any(only in name for name in checks()):
        raise UnknownNameError.of("check", only, checks())
    failed = 0
    for path in detectors:
        with status(f"checking {path}"):
            outcome = check_by_path(path, only=only)
        say(outcome)
        failed += not outcome.passed
    return int(failed > 0)
