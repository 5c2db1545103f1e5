"""`oodlit report`: write HTML pages of saved results."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from oodlit.base.errors import UsageError

COMPARISON = Path("comparison", "report.html")
"""Default file for several runs; its folder must not contain results, because it would replace their page."""


def report(results: list[Path], *, out: Path | None = None) -> None:
    """Write the HTML page of saved results.

    The page is one self-contained file. No network, data, or GPU is required. For several results, one page
    compares all of them, and each gets its own page beside it: report-NAME.html beside report.html. Pages in the
    folders of the results are not changed.

    Args:
        results: folders of results; several are compared
        out: file to write (default: report.html in the folder, or comparison/)
    """
    from oodlit.cli.console import say
    from oodlit.report import load_results, write_report

    folders = dict(zip(run_names(results), results, strict=True))
    runs = {name: load_results(folder) for name, folder in folders.items()}
    page = write_report(runs, out or _default(results), folders=folders, say=say)
    say(f"Report: {page}")


def _default(results: Sequence[Path]) -> Path:
    """The default file: beside the results of one run, in a separate folder for several.

    Raises:
        UsageError: That folder contains the results of a run.
    """
    if len(results) == 1:
        return results[0] / "report.html"
    if (COMPARISON.parent / "run.json").exists():
        raise UsageError(f"{COMPARISON.parent} contains the results of a run; choose another file with --out")
    return COMPARISON


def run_names(folders: Sequence[Path]) -> list[str]:
    """A unique name for each folder: the shortest end of its path that no other folder shares.

    Raises:
        UsageError: A folder is repeated.
    """
    paths = [folder.resolve() for folder in folders]
    if twice := [path for path, times in Counter(paths).items() if times > 1]:
        raise UsageError(f"{twice[0]} is repeated; give every folder of results once")
    depth = next(depth for depth in count(1) if len({path.parts[-depth:] for path in paths}) == len(paths))
    return ["/".join(path.parts[-depth:]) for path in paths]
