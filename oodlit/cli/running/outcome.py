"""The output of a run: check its folder before, print its results after."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.base.text.singular import singular
from oodlit.detectors.contract.registry import readable_names
from oodlit.objects.results import ObjectResults
from oodlit.objects.results.summary import summary_tables
from oodlit.report import chosen_detector, partial_text, summary_table
from oodlit.results import Results, operating_sentence
from oodlit.results.files.storage import check_replaceable
from oodlit.results.names import unused_heading
from oodlit.results.views.operating import are_labeled
from oodlit.scoring.applicable import by_reason

UNTRAINED = "untrained"
"""Folder in the results of a run: the same run with random weights."""


def check_folder(out: Path, *, fitted: str | Path | None = None) -> bool:
    """Reject a folder with files that oodlit did not write.

    A folder belongs to oodlit if it is empty, contains the `run.json` of a run, or only shards, scenes, a fit, or a run
    with random weights.

    Args:
        out: The folder; need not exist.
        fitted: Folder of the fitted detectors that the run uses; may be in `out`.

    Returns:
        Whether it contains results of an earlier run, which will be replaced.

    Raises:
        InvalidArgumentError: `out` is a file, or a folder with files that no run of oodlit wrote, or with parts of
            results without a `run.json`.
    """
    if not out.exists():
        return False
    if not out.is_dir():
        raise InvalidArgumentError(f"--out {out}: expected a folder, got a file; choose another folder")
    if check_replaceable(out, keep=None if fitted is None else Path(fitted)):
        return True
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    if foreign := sorted(names - {"shards", "scenes", "fitted", "unfinished", UNTRAINED}):
        raise InvalidArgumentError(
            f"--out {out} contains {foreign[0]!r}, which oodlit did not write; choose another folder"
        )
    return False


def print_outcome(results: Results | ObjectResults, console: Console) -> None:
    """Print the tables of a run with its findings and notes, and the detector to choose.

    Args:
        results: The run.
        console: The output.
    """
    for finding in results.findings:
        style, begin = ("green", "Good sign") if finding.is_good else ("bold red", "Finding")
        console.print(Text(f"{begin}: {finding.text}", style=style))
    choice = chosen_detector(results)
    failed = " ".join(finding.text for finding in results.findings if finding.kind == "failed")
    others = unused_lines({n: why for n, why in results.run.not_applicable.items() if repr(n) not in failed})
    if isinstance(results, Results):
        ends = "; best values in green." if console.color_system is not None and not console.no_color else "."
        tables, partial = [summary_table(results)], partial_text(results)
        lines = [_counts(results) + ends, *_prompts(results)]
        lines += _at_one_percent(results, choice.detector if choice else "")
    else:
        tables, partial, lines = summary_tables(results), "", results.run.notes
    for table in tables:
        console.print(table)
    for line in [*lines, *others]:
        console.print(Text(singular(line), style="dim"))
    for remark in filter(None, (results.run.caveat, partial)):
        console.print(Text(singular(str(remark)), style="yellow"))
    if choice:
        console.print(Text(singular(choice.sentence + choice.others), style="bold"))


def _counts(results: Results) -> str:
    inside = next(info for info in results.datasets if info.role is Role.ID)
    rows = results.table[(results.table["dataset"] == inside.name) & (results.table["metric"] == "accuracy")]
    accuracy = f" (accuracy of the classifier: {100 * rows['value'].iloc[0]:.1f} %)" if len(rows) else ""
    return (
        f"Thresholds accept {100 * results.settings.tpr:g} % of the {results.run.counts[inside.name]} images of"
        f" {inside.name}{accuracy}. Intervals have {100 * results.settings.confidence:g} % confidence"
    )


def _prompts(results: Results) -> list[str]:
    """Prompts of zero-shot detectors: of the classes, in the name of the network, and of negative words."""
    notes = [f"{name}: {note}" for name, told in results.run.fit_notes.items() for note in told if "prompts of" in note]
    network = results.run.backbone
    return [f"Network: {network.name}", *notes] if notes or "{class}" in network.name else []


def _at_one_percent(results: Results, choice: str) -> list[str]:
    """What the best detector does if 1 % of the images are like the first OOD set; nothing without labels."""
    outside = [info.name for info in results.datasets if info.role is Role.OOD]
    if not outside or not are_labeled(results) or results.images(outside[0]).empty:
        return []
    return [operating_sentence(results, outside[0], prior=0.01, choice=choice) + "."]


def unused_lines(reasons: Mapping[str, str]) -> list[str]:
    """One line per reason, most frequent first, with the display names of detectors that were not used for it.

    Example:
        >>> unused_lines({"vim": "needs training images", "knn": "needs training images"})
        ['Not applicable: KNN, ViM - need training images']
        >>> unused_lines({"odin": "costs 2 extra forward passes per image"})
        ['Not used: ODIN - costs 2 extra forward passes per image']
    """
    known = readable_names()
    shown = by_reason({known.get(name, name): reason for name, reason in reasons.items()})
    return [f"{unused_heading(text)}: {', '.join(names)} - {text}" for names, text in shown]
