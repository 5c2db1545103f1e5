"""`oodlit report`: from saved results to HTML pages."""

from pathlib import Path


def report(results: list[Path], *, out: Path | None = None) -> None:
    """Make the HTML page of saved results.

    The page needs no other file, and making it no network, data or GPU.

    Args:
        results: folders of results; several are shown below each other on one page
        out: file to write (default: report.html in the first folder)
    """
    from oodlit.cli.console import say
    from oodlit.report import write_report
    from oodlit.results import Results

    page = write_report(
        {folder.resolve().name: Results.load(folder) for folder in results},
        out or results[0] / "report.html",
        folders={folder.resolve().name: folder for folder in results},
    )
    say(f"Report: {page}")
