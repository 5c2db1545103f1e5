"""`oodlit report`: from saved results to HTML pages."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def report(results: list[Path], *, out: Path | None = None) -> None:
    """Make the HTML page of saved results.

    The page needs no other file, and making it no network, data or GPU. Of several results one page compares all of
    them, and each has a page of its own beside it: report-NAME.html beside report.html.

    Args:
        results: folders of results; several are compared
        out: file to write (default: report.html in the first folder)
    """
    from oodlit.cli.console import say
    from oodlit.report import write_report
    from oodlit.results import Results

    folders = dict(zip(_names(results), results, strict=True))
    page = write_report(
        {name: Results.load(folder) for name, folder in folders.items()},
        out or results[0] / "report.html",
        folders=folders,
    )
    say(f"Report: {page}")


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: the last part of its path, with as many before it as tell it from the others.

    Raises:
        UsageError: A folder is named twice.
    """
    from oodlit.errors import UsageError

    paths = [folder.resolve() for folder in folders]
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise UsageError(f"{twice[0]} is named twice; name every folder of results once")
    names = [path.name for path in paths]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
    return names
