"""Summaries as text: Markdown, LaTeX, JSON, in the style of the papers' tables (percent, one decimal, best in bold)."""

import itertools
import os
import re
from pathlib import Path

import pandas as pd

from oodlit.base.atomic import write_bytes
from oodlit.base.errors import InvalidArgumentError
from oodlit.results.glossary import entry_of, value_text

# "[" and "*" after a line's end would be read as its arguments; "<", ">" and "|" are other signs in the default font.
_LATEX = {"[": "{[}", "]": "{]}", "*": "{*}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
          "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}  # fmt: skip


def formatted(summary: pd.DataFrame, *, bold: tuple[str, str]) -> pd.DataFrame:
    """The summary as text: shares in percent with one decimal, counts as integers, "-" for NaN; the best is marked."""
    text = pd.DataFrame(index=summary.index, columns=summary.columns, dtype=object)
    columns: list[object] = list(summary.columns)
    for column in columns:
        metric = str(column[-1] if isinstance(column, tuple) else column)
        values = summary[column]
        entry = entry_of(metric)
        is_count = entry is not None and entry.is_count
        shown = [value_text(float(value), is_count=is_count) for value in values]
        if entry is not None and entry.better and len(values) > 1 and values.notna().any():
            mark = value_text(float(values.min() if entry.better == "lower" else values.max()), is_count=is_count)
            shown = [f"{bold[0]}{s}{bold[1]}" if s == mark else s for s in shown]
        text[column] = shown
    return text


def to_markdown_text(summary: pd.DataFrame) -> str:
    """A GitHub table; columns are `data set: metric`."""
    text = formatted(summary, bold=("**", "**"))
    header = ["detector", *(_in_markdown(_title(column)) for column in text.columns)]
    lines = [header, ["---", *["---:"] * len(text.columns)]]
    lines += [[_in_markdown(str(name)), *map(str, row)] for name, row in zip(text.index, text.to_numpy(), strict=True)]
    note = f"\n{_in_markdown(summary.attrs['note'])}\n" if "note" in summary.attrs else ""
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n" + note


def to_latex_text(summary: pd.DataFrame) -> str:
    """A booktabs `tabular`; data sets span their metrics."""
    text = formatted(summary, bold=(r"\textbf{", "}"))
    found: list[object] = list(text.columns)
    columns = [column if isinstance(column, tuple) else ("", column) for column in found]
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule"]
    if any(first for first, *_ in columns):
        spans = [(str(first), len(list(group))) for first, group in itertools.groupby(columns, lambda c: c[0])]
        lines.append(" & ".join(["", *(rf"\multicolumn{{{n}}}{{c}}{{{_escaped(s)}}}" for s, n in spans)]) + r" \\")
    lines.append(" & ".join(["Detector", *(_escaped(str(column[-1])) for column in columns)]) + r" \\")
    lines.append(r"\midrule")
    for name, row in zip(text.index, text.to_numpy(), strict=True):
        lines.append(" & ".join([_escaped(str(name)), *map(str, row)]) + r" \\")
    note = [f"% {summary.attrs['note']}"] if "note" in summary.attrs else []
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *note]) + "\n"


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


def _title(column: object) -> str:
    return ": ".join(map(str, column)) if isinstance(column, tuple) else str(column)


def _in_markdown(text: str) -> str:
    # A name must stay the name: neither cell border, nor HTML, nor emphasis, code or link. "_" inside words is plain.
    return re.sub(r"([\\`*\[\]|<>]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text).replace("&", "&amp;")


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
