"""Tables for terminals of any width."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 100_000


def with_notes(table: Table, notes: Sequence[str], hidden: Sequence[str]) -> Table:
    """Return the table with notes below it, the last about what is hidden."""
    if hidden:
        notes = [*notes, f"Not shown because the terminal is too narrow: {', '.join(hidden)}; see the report"]
    if notes:
        table.caption, table.caption_justify = Text(". ".join(notes) + ".", style="dim"), "left"
    return table


class FirstFitting:
    """Several forms of a table, widest first: printing shows the first one that fits into the terminal.

    If none fits, the last one is shown.

    Example:
        >>> wide, narrow = Table("detector", "FPR"), Table("detector")
        >>> console = Console(width=15)
        >>> console.print(FirstFitting([wide, narrow]))
        ┏━━━━━━━━━━┓
        ┃ detector ┃
        ┡━━━━━━━━━━┩
        └──────────┘
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Choose a table by the width."""
        unlimited = options.update(max_width=_ANY_WIDTH)
        fitting = (t for t in self.tables if Measurement.get(console, unlimited, t).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])
