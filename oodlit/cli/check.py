"""`oodlit check`: a detector of one's own against the contract."""


def check(detectors: list[str], *, only: str | None = None) -> int:
    """Test a detector of your own against the contract.

    Every detector of oodlit keeps it; the exit code is 1 if one breaks it. Needs pip install 'oodlit[testing]'.

    Args:
        detectors: dotted paths of classes, such as my.module.MyDetector; the current folder is searched, too
        only: run only the checks whose name holds this text
    """
    from importlib.util import find_spec

    from oodlit.errors import MissingExtraError, UnknownNameError

    for package in ("hypothesis", "pytest"):  # before torch is imported, which takes seconds
        if find_spec(package) is None:
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
