"""The headline of a run for a terminal."""

import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from oodlit.base.roles import UNKNOWN_CLASSES
from oodlit.base.text.singular import singular
from oodlit.objects.results import ObjectResults
from oodlit.report.box_view import box_choice
from oodlit.report.detector_choice import choose
from oodlit.report.headline import (
    Cell,
    Column,
    classes_text,
    headline_columns,
    mean_columns,
    ranked_detectors,
    scored_images,
)
from oodlit.report.section import ChosenDetector, Shown, ShownBoxes
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Results
from oodlit.results.any_results import AnyResults
from oodlit.results.displayed import displayed
from oodlit.results.views.terminal import FirstFitting, with_notes


def chosen_detector(results: AnyResults) -> ChosenDetector | None:
    """Choose a detector of a run, as its page does; None if there is no choice."""
    results = displayed(results)
    if isinstance(results, ObjectResults):
        return box_choice(ShownBoxes(results))
    return choose(Shown(results, ThumbnailStyles({}, ""))) if isinstance(results, Results) else None


def summary_table(results: Results) -> FirstFitting:
    """Make a table of detectors with FPR and AUROC of every OOD set and failed unit tests, the best detector first.

    Means over data sets, as of a benchmark, come before the sets.

    In a narrow terminal, it has no intervals, then fewer columns: AUROC goes first, the last set first. Display
    names are never cut, and a line below lists what is left out.

    Args:
        results: A run.

    Returns:
        A rich table with the number of images in every heading; names are not interpreted as markup.
    """
    results = displayed(results)
    columns = [c for c in headline_columns(results) if results.dataset(c.dataset).role in UNKNOWN_CLASSES]
    names = ranked_detectors(results, columns)
    columns = [*mean_columns(results), *columns]
    dropped = [c for first in (True, False) for c in columns[::-1] if (c.better == "higher") is first]
    forms = [[c for c in columns if c not in dropped[:number]] for number in range(max(len(columns), 1))]
    tables = [_table(results, names, kept, columns, intervals=False) for kept in forms]
    return FirstFitting([_table(results, names, columns, columns, intervals=True), *tables])


def _table(
    results: Results, names: Sequence[str], columns: Sequence[Column], every: Sequence[Column], *, intervals: bool
) -> Table:
    """The table with some of the columns, with or without intervals."""
    table = Table(header_style="bold", title_justify="left", pad_edge=False, box=None, padding=(0, 2))
    longest = max(map(cell_len, names), default=0)
    table.add_column(Text("detector", style="bold"), no_wrap=True, min_width=longest)
    for column in columns:
        heading = f"{column.dataset}\n{_number(results, column.dataset)}\n{_label(column, results)}"
        table.add_column(Text(heading, justify="right"), justify="right", no_wrap=True)
    undefined = [(c.dataset, cell.interval) for c in columns for cell in c.cells if math.isnan(cell.sort)]
    marks = {place: f"[{n}]" for n, place in enumerate(dict.fromkeys(p for p in undefined if p[1]), 1)}
    for name in names:
        index = results.detectors.index(name)
        cells = [(column.cells[index], column.dataset) for column in columns]
        table.add_row(Text(name), *(_text(c, marks.get((place, c.interval), ""), intervals) for c, place in cells))
    notes = [f"{mark} undefined on {dataset}: {reason}" for (dataset, reason), mark in marks.items()]
    hidden = [f"{c.dataset} {_label(c, results)}" for c in every if c not in columns]
    return with_notes(table, notes, [*([] if intervals else ["intervals"]), *hidden])


def _number(results: Results, name: str) -> str:
    """Number of images of a data set, and of classes if some have none; number of data sets of a mean."""
    if sets := results.settings.aggregates.get(name):
        return singular(f"mean of {len(sets)} sets")
    some = classes_text(results, results.dataset(name))
    return f"n = {scored_images(results, name)}" + (f"\n{some}" if some else "")


def _label(column: Column, results: Results) -> str:
    number = f" of {len(results.dataset(column.dataset).class_names) or 1}" if column.is_count else ""
    return column.label + number


def _text(cell: Cell, mark: str, intervals: bool) -> Text:
    """The value with its interval, or with the mark of the note why it is undefined."""
    if math.isnan(cell.sort):
        return Text(f"{cell.text} {mark}".strip(), style="dim")
    text = f"{cell.text} {cell.interval}".strip() if intervals else cell.text
    return Text(text, style="bold green" if cell.best else "")
