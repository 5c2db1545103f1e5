"""What a demo leaves: results, page, and a table on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.text import Text

from oodlit.cli.console import status
from oodlit.errors import InvalidArgumentError
from oodlit.report import write_report
from oodlit.report.headline import partial_text
from oodlit.report.summary import summary_table
from oodlit.results import Results
from oodlit.results.storage import check_replaceable
from oodlit.roles import Role

__all__ = ["check_folder", "is_first_process", "not_applicable_lines", "present"]


def check_folder(out: Path, *, fitted: str | Path | None = None) -> bool:
    """Refuse to write into a folder that holds something else.

    A folder belongs to oodlit if it is empty, holds the `run.json` of a run, or nothing but the shards that a
    run begins with.

    Args:
        out: The folder; need not exist.
        fitted: Folder of the fitted detectors that the run uses; they may lie in `out`.

    Returns:
        Whether results of an earlier run lie there; they will be replaced.

    Raises:
        InvalidArgumentError: `out` is a file, or a folder with content that no run of oodlit wrote, or with parts of
            results that no `run.json` belongs to.
    """
    if not out.exists():
        return False
    if out.is_dir() and check_replaceable(out, keep=None if fitted is None else Path(fitted)):
        return True
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.is_dir() else {"a file"}
    if foreign := sorted(names - {"shards", "fitted"}):
        raise InvalidArgumentError(
            f"--out {out}: it holds {foreign[0]!r}, which was not written by oodlit; name a new folder"
        )
    return False


def is_first_process() -> bool:
    """Whether this is the process that prints and writes."""
    return int(getattr(rank_zero_only, "rank", None) or 0) == 0


def present(
    results: Results,
    out: Path,
    *,
    left_out: Mapping[str, str],
    warned: Sequence[str],
    console: Console | None,
    caveat: str = "",
) -> Path:
    """Complete the record of a run, write its page, print its table.

    Args:
        results: The run, already saved in `out`.
        out: Its folder.
        left_out: Detectors that were not even tried, with the reason.
        warned: Warnings of the run.
        console: Where to print. None = nowhere.
        caveat: What must be kept in mind with these numbers; shown on the page and the terminal.

    Returns:
        The HTML page.
    """
    if caveat:
        results.run["caveat"] = caveat
    results.run["not_applicable"] = {**left_out, **results.run.get("not_applicable", {})}
    results.run["warnings"] = [text for text in warned if "is left out" not in text]
    results.save(out)
    with status("writing the report"):
        page = write_report(results, out / "report.html")
    if console is not None:
        console.print(summary_table(results))
        console.print(Text(_counts(results), style="dim"))
        for line in not_applicable_lines(results.run["not_applicable"]):
            console.print(Text(line, style="dim"))
        if caveat:
            console.print(Text(caveat, style="yellow"))
        if partial := partial_text(results):
            console.print(Text(partial, style="yellow"))
    return page


def _counts(results: Results) -> str:
    inside = next(info for info in results.datasets if info.role is Role.ID)
    rows = results.table[(results.table["dataset"] == inside.name) & (results.table["metric"] == "accuracy")]
    accuracy = f", classified with accuracy {100 * rows['value'].iloc[0]:.1f} %" if len(rows) else ""
    return (
        f"Thresholds keep {100 * results.settings.tpr:g} % of the {results.run['counts'][inside.name]} images of"
        f" {inside.name}{accuracy}. In brackets {100 * results.settings.confidence:g} % intervals; the best in green."
    )


def not_applicable_lines(reasons: Mapping[str, str]) -> list[str]:
    """Detectors without scores by their reason, the most frequent one first; a reason that many share is said once.

    Example:
        >>> not_applicable_lines({"vim": "no training images", "knn": "no training images"})
        ['Not applicable: knn, vim - no training images']
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        by_reason.setdefault(reason, []).append(name)
    shared = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    return [f"Not applicable: {', '.join(names)} - {reason}" for reason, names in shared]
