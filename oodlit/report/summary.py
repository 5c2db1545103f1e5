"""The headline of a run for a terminal."""

import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from oodlit.base.roles import UNKNOWN_CLASSES
from oodlit.report.headline import Cell, Column, classes_text, headline_columns, ranked_detectors, scored_images
from oodlit.results import Results
from oodlit.results.displayed import displayed
from oodlit.results.views.terminal import FirstFitting


def summary_table(results: Results) -> FirstFitting:
    """Make a table of detectors with FPR and AUROC of every OOD set and failed unit tests, the best detector first.

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
        some = classes_text(results, results.dataset(column.dataset))
        number = f"n = {scored_images(results, column.dataset)}" + (f"\n{some}" if some else "")
        heading = f"{column.dataset}\n{number}\n{_label(column, results)}"
        table.add_column(Text(heading, justify="right"), justify="right", no_wrap=True)
    undefined = {(c.dataset, cell.interval): "" for c in columns for cell in c.cells if math.isnan(cell.sort)}
    marks = {place: f"[{number}]" for number, place in enumerate(filter(lambda place: place[1], undefined), 1)}
    for name in names:
        index = results.detectors.index(name)
        cells = [(column.cells[index], column.dataset) for column in columns]
        table.add_row(Text(name), *(_text(c, marks.get((place, c.interval), ""), intervals) for c, place in cells))
    notes = [f"{mark} undefined on {dataset}: {reason}" for (dataset, reason), mark in marks.items()]
    if not intervals:
        hidden = "".join(f", {c.dataset} {_label(c, results)}" for c in every if c not in columns)
        notes.append(f"Not shown because the terminal is too narrow: intervals{hidden}; see the report")
    if notes:
        table.caption, table.caption_justify = Text(". ".join(notes) + ".", style="dim"), "left"
    return table


def _label(column: Column, results: Results) -> str:
    if not column.is_count:
        return column.label
    return f"{column.label} of {len(results.dataset(column.dataset).class_names) or 1}"


def _text(cell: Cell, mark: str, intervals: bool) -> Text:
    """The value with its interval, or with the mark of the note why it is undefined."""
    if math.isnan(cell.sort):
        return Text(f"{cell.text} {mark}".strip(), style="dim")
    text = f"{cell.text} {cell.interval}".strip() if intervals else cell.text
    return Text(text, style="bold green" if cell.best else "")
