"""`oodlit report`: from saved results to HTML pages."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

COMPARISON = Path("comparison", "report.html")
"""Where the page of several runs goes when no file is named: beside no results, whose page it would replace."""


def report(results: list[Path], *, out: Path | None = None) -> None:
    """Make the HTML page of saved results.

    The page needs no other file, and making it no network, data or GPU. Of several results one page compares all of
    them, and each has a page of its own beside it: report-NAME.html beside report.html. Pages in the folders of the
    results stay as they are.

    Args:
        results: folders of results; several are compared
        out: file to write (default: report.html in the folder; of several, comparison/report.html in the current one)
    """
    from oodlit.cli.console import say
    from oodlit.report import load_results, write_report

    folders = dict(zip(_names(results), results, strict=True))
    page = write_report(
        {name: load_results(folder) for name, folder in folders.items()},
        out or _default(results),
        folders=folders,
    )
    say(f"Report: {page}")


def _default(results: Sequence[Path]) -> Path:
    """The page of one run lies with its results, that of several in a folder of its own.

    Raises:
        UsageError: That folder holds the results of a run.
    """
    from oodlit.errors import UsageError

    if len(results) == 1:
        return results[0] / "report.html"
    if (COMPARISON.parent / "run.json").exists():
        raise UsageError(f"{COMPARISON.parent}: it holds the results of a run; name another file by --out")
    return COMPARISON


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
