r"""The headline of results of boxes: metrics per box and of objects, for a terminal and for the page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from oodlit.base.text.singular import singular
from oodlit.objects.metrics.registry import box_metrics
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.results.results import ObjectResults
from oodlit.results.displayed import displayed
from oodlit.results.glossary import value_text
from oodlit.results.names import MODEL
from oodlit.results.views.terminal import FirstFitting, with_notes

_FIRST = ("auroc", "fpr{share}", "auroc_hit", "ap_u", "r_u")
"""Metrics that come first in the headline; the remaining ones follow in the order of the table."""
_LEFT_OUT = frozenset({"fpr{share}_hit", "aose_boxes"})
"""Metrics that only the full table shows: other columns are nearly the same."""
_MAIN = ("auroc", "fpr{share}", "ap_u", "r_u", "p_u", "nose")
"""Metrics that are visible on the page: how well boxes are separated, and unknown objects found and missed."""


class HeadlineCell(NamedTuple):
    """One value of a detector on a split.

    Args:
        text: The value as text, in percent if it is a share.
        value: The number; NaN if undefined.
        interval: Lower and upper end; empty = none.
        reason: Why it is NaN.
        is_best: Whether it is the best value of a column whose values differ.
    """

    text: str
    value: float
    interval: str = ""
    reason: str = ""
    is_best: bool = False


def headline_metrics(settings: ObjectSettings) -> list[str]:
    """Names of the columns.

    Example:
        >>> headline_metrics(ObjectSettings())[:4]
        ['auroc', 'fpr95', 'auroc_hit', 'ap_u']
    """
    of_detectors = {entry.name: name for name, entry in box_metrics(settings).items() if not entry.of_classifier}
    return [of_detectors[name] for name in dict.fromkeys((*_FIRST, *of_detectors)) if name not in _LEFT_OUT]


def main_metrics(settings: ObjectSettings) -> list[str]:
    """Names of the columns that are visible on the page; the others are folded.

    Example:
        >>> main_metrics(ObjectSettings())
        ['auroc', 'fpr95', 'ap_u', 'r_u', 'p_u', 'nose']
    """
    entries = box_metrics(settings)
    return [name for name in headline_metrics(settings) if entries[name].name in _MAIN]


def headline(results: ObjectResults, dataset: str) -> dict[str, list[HeadlineCell]]:
    """Cells of a split by detector, highest AP_U first: metrics, and tau."""
    table = results.table[(results.table["dataset"] == dataset) & (results.table["detector"] != MODEL)]
    found = {(row["detector"], row["metric"]): row for row in table.to_dict("records")}
    names, entries = headline_metrics(results.settings), box_metrics(results.settings)
    best = {}
    for name in names:
        values = {float(found[d, name]["value"]) for d in results.detectors if (d, name) in found}
        defined = {value for value in values if not math.isnan(value)}
        first = max if entries[name].better == "higher" else min
        best[name] = first(defined) if len(defined) > 1 else math.nan  # a value that all detectors share is not
    rows = {}
    for detector in ranked(results, dataset):
        cells = []
        for name in names:
            row = found.get((detector, name))
            value, *ends = (math.nan,) * 3 if row is None else (row["value"], row["ci_low"], row["ci_high"])
            known = [value_text(end, is_count=entries[name].is_count) for end in ends if not math.isnan(end)]
            reason = results.reason(name, dataset=dataset, detector=detector)
            text = value_text(value, is_count=entries[name].is_count)
            cells.append(HeadlineCell(text, value, " to ".join(known), reason, value == best[name]))
        tau = found[detector, "auroc"]["tau"]
        why = results.reason("ap_u", dataset=dataset, detector=detector) if math.isnan(tau) else ""
        rows[detector] = [*cells, HeadlineCell(f"{tau:.4g}" if not math.isnan(tau) else "-", tau, reason=why)]
    return rows


def ranked(results: ObjectResults, dataset: str) -> list[str]:
    """Sort detectors by AP_U on a split, highest first; undefined values last, ties in the order of the run."""
    values = {name: results.value("ap_u", dataset=dataset, detector=name) for name in results.detectors}
    return sorted(values, key=lambda name: math.inf if math.isnan(values[name]) else -values[name])


def summary_tables(results: ObjectResults) -> list[FirstFitting]:
    """Make a table per split for a terminal, with reasons of undefined values; a narrow one shows fewer metrics."""
    results = displayed(results)
    names = [*headline_metrics(results.settings), "tau"]
    return [
        FirstFitting([_table(results, dataset, names[: len(names) - number], names) for number in range(len(names))])
        for dataset in results.splits
    ]


def _table(results: ObjectResults, dataset: str, names: Sequence[str], every: Sequence[str]) -> Table:
    """The table of one split with some of the metrics."""
    rows, entries = headline(results, dataset), box_metrics(results.settings)
    labels = {n: n if n not in entries or entries[n].is_count else f"{n} %" for n in every}
    reasons = dict.fromkeys(cell.reason for row in rows.values() for cell in row[: len(names)] if cell.reason)
    marks = {reason: f"[{number}]" for number, reason in enumerate(reasons, 1)}
    table = Table(title=_title(results, dataset), title_justify="left", header_style="bold", box=None, padding=(0, 2))
    longest = max(map(cell_len, results.detectors), default=0)
    table.add_column("detector", style="bold", no_wrap=True, min_width=longest)
    for name in names:
        table.add_column(Text(labels[name], justify="right"), justify="right", no_wrap=True)
    for detector, row in rows.items():
        texts = [(f"{cell.text} {marks.get(cell.reason, '')}".strip(), cell.is_best) for cell in row[: len(names)]]
        table.add_row(Text(detector), *(Text(text, style="bold green" if best else "") for text, best in texts))
    notes = [f"{mark} undefined: {reason}" for reason, mark in marks.items()]
    return with_notes(table, notes, [label for name, label in labels.items() if name not in names])


def _title(results: ObjectResults, dataset: str) -> Text:
    row, settings = results.row("no_boxes", dataset=dataset), results.settings
    text = (
        f"\n{dataset}: {row['n_objects']} unknown objects in {row['n_images']} images. Images without a box of"
        f" confidence t* = {settings.t_star:.4g} or higher: {value_text(row['value'])} %. Number of such boxes:"
        f" {row['n_ood']} in {dataset}, {row['n_id']} in {results.id_dataset.name}. Rule for the score threshold tau:"
        f" {settings.rule}. Rules for the metrics: {settings.rules}"
    )
    return Text(singular(text))
