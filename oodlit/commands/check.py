"""`oodlit check`: a detector of one's own against the contract."""

__all__ = ["check"]


def check(detectors: list[str], *, only: str | None = None) -> int:
    """Test detectors against the contract that every detector of oodlit keeps. Exit code 1 if one breaks it.

    Args:
        detectors: dotted paths of classes, such as my.module.MyDetector; the current folder is searched first
        only: run only the checks whose name holds this text
    """
    from oodlit.console import console, status
    from oodlit.testing import check_by_path

    failed = 0
    for path in detectors:
        with status(f"checking {path}"):
            outcome = check_by_path(path, only=only)
        console().print(str(outcome), highlight=False, markup=False, soft_wrap=True)
        failed += not outcome.passed
    return int(failed > 0)
