"""Tables as text: Markdown, LaTeX, CSV, in the style of papers (percent, one decimal, best in bold)."""

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from oodlit.base.atomic import write_bytes
from oodlit.base.errors import InvalidArgumentError
from oodlit.results.views.paper import PaperCell, PaperTable

# "[" and "*" after a line's end would be read as its arguments; "<", ">" and "|" are other signs in the default font.
_LATEX = {"[": "{[}", "]": "{]}", "*": "{*}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
          "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip

_ARROWS = {"lower": (" ↓", r" $\downarrow$"), "higher": (" ↑", r" $\uparrow$"), "": ("", "")}
"""In Markdown and LaTeX, by the better direction."""


def _pipes(header: list[str], rows: Sequence[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def latex_of(table: PaperTable) -> str:
    """A booktabs `tabular`; data sets span their columns, and notes follow in small print."""
    spans = [(name, len(list(group))) for name, group in itertools.groupby(c.dataset for c in table.columns)]
    ends = list(itertools.accumulate((n for _, n in spans), initial=2))
    rules = "".join(rf"\cmidrule(lr){{{first}-{last - 1}}}" for first, last in itertools.pairwise(ends))
    heads = [_escaped(c.metric) + _ARROWS[c.better][1] for c in table.columns]
    lines = [["", *(rf"\multicolumn{{{n}}}{{c}}{{{_escaped(name)}}}" for name, n in spans)], ["Detector", *heads]]
    cells = [[_latex_cell(column.cells[row]) for column in table.columns] for row in range(len(table.names))]
    lines += [[_escaped(name), *own] for name, own in zip(table.names, cells, strict=True)]
    first, second, *rest = (" & ".join(line) + r" \\" for line in lines)
    notes = [_escaped(note) + r"\par" for note in table.notes]
    return "\n".join(
        [
            "% Requires \\usepackage{booktabs}",
            r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
            *(r"\toprule", first, rules, second, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"),
            *(r"\par\smallskip", r"\begin{minipage}{\linewidth}", r"\footnotesize", *notes, r"\end{minipage}"),
            "",
        ]
    )


def _latex_cell(cell: PaperCell) -> str:
    text = rf"\textbf{{{cell.text}}}" if cell.is_best else cell.text.replace("-", "--")
    return text + (rf" {{\scriptsize {_escaped(f'[{cell.interval}]')}}}" if cell.interval else "")


def markdown_of(table: PaperTable) -> str:
    """A GitHub table; columns are `data set: metric`, and notes follow."""
    header = [
        "detector",
        *(f"{_in_markdown(c.dataset)}: {_in_markdown(c.metric)}{_ARROWS[c.better][0]}" for c in table.columns),
    ]
    rows = []
    for row, name in enumerate(table.names):
        cells = [column.cells[row] for column in table.columns]
        texts = [(f"**{c.text}**" if c.is_best else c.text) + (f" [{c.interval}]" if c.interval else "") for c in cells]
        rows.append([_in_markdown(name), *texts])
    return _pipes(header, rows) + "".join(f"\n{_in_markdown(note)}\n" for note in table.notes)


def csv_of(table: PaperTable) -> str:
    """Values as shown; bounds of intervals, and whether a value would be bold (1), have separate columns."""
    columns: dict[str, list[str | int]] = {"detector": list(table.names)}
    for column in table.columns:
        name = f"{column.dataset}: {column.metric}"
        columns[name] = ["" if cell.text == "-" else cell.text for cell in column.cells]
        if any(cell.interval for cell in column.cells):
            for place, bound in enumerate(("low", "high")):
                columns[f"{name} {bound}"] = [[*cell.interval.split(", "), "", ""][place] for cell in column.cells]
        if column.better:
            columns[f"{name} best"] = [int(cell.is_best) for cell in column.cells]
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")


def write_export(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file into a folder that exists: a missing one is often misspelled.

    Raises:
        InvalidArgumentError: The folder does not exist, or the path is a folder.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise InvalidArgumentError(f"cannot write {file}: the folder {file.parent} does not exist; create it first")
    if file.is_dir():
        raise InvalidArgumentError(f"cannot write {file}: expected a file name, got a folder")
    write_bytes(file, data)


def _in_markdown(text: str) -> str:
    # A name must stay the name: neither cell border, nor HTML, nor emphasis, code or link. "_" inside words is plain.
    return re.sub(r"([\\`*\[\]|<>]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text).replace("&", "&amp;")


def _escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"([-'`])(?=\1)", r"\1{}", escaped)  # two in a row would become one sign
