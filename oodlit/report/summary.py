"""The headline of a run for a terminal."""

import math

from rich.table import Table
from rich.text import Text

from oodlit.base.roles import UNKNOWN_CLASSES
from oodlit.report.headline import Cell, Column, classes_text, headline_columns, ranked_detectors, scored_images
from oodlit.results import Results


def summary_table(results: Results) -> Table:
    """Make a table of detectors with FPR and AUROC of every OOD set and failed unit tests, the best detector first.

    Args:
        results: A run.

    Returns:
        A rich table with the number of images in every heading; names are not interpreted as markup.
    """
    columns = [c for c in headline_columns(results) if results.dataset(c.dataset).role in UNKNOWN_CLASSES]
    table = Table(header_style="bold", title_justify="left", pad_edge=False, box=None, padding=(0, 2))
    table.add_column(Text("detector", style="bold"), no_wrap=True)
    for column in columns:
        some = classes_text(results, results.dataset(column.dataset))
        number = f"n = {scored_images(results, column.dataset)}" + (f", {some}" if some else "")
        heading = f"{column.dataset}\n{number}\n{_label(column, results)}"
        table.add_column(Text(heading, justify="right"), justify="right", no_wrap=True)
    for name in ranked_detectors(results, columns):
        index = results.detectors.index(name)
        table.add_row(Text(name), *(_text(column.cells[index]) for column in columns))
    return table


def _label(column: Column, results: Results) -> str:
    if not column.is_count:
        return column.label
    return f"{column.label} of {len(results.dataset(column.dataset).class_names) or 1}"


def _text(cell: Cell) -> Text:
    if math.isnan(cell.sort):
        return Text(f"{cell.text} {cell.interval}".strip(), style="dim")
    return Text(f"{cell.text} {cell.interval}".strip(), style="bold green" if cell.best else "")
