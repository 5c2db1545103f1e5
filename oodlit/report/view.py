"""The content of the page for one run of images, as plain values from `Results`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodlit.report.headline import Column, Lookup, partial_text, percent_text
from oodlit.report.section import Shown
from oodlit.report.sections.images import SECTIONS
from oodlit.report.thumbnails import ThumbnailStyles, keys_to_show, load_thumbnails
from oodlit.results import DatasetInfo, Results
from oodlit.results.names import MODEL
from oodlit.results.plots.select import model_name
from oodlit.roles import NAMES_OF_LABELS, Role


def view(title: str, results: Results, folder: Path | None, prefix: str) -> dict[str, Any]:
    """Everything that the template needs of one run; `prefix` begins the CSS classes of its thumbnails."""
    thumbnails = ThumbnailStyles(load_thumbnails(folder, keys_to_show(results)), prefix)
    shown = Shown(results, thumbnails)
    return {
        "title": model_name(results) or title,
        "subtitle": _subtitle(results, shown.inside),
        "alert": partial_text(results),
        "findings": results.findings,
        "caveat": results.run.caveat,
        "facts": _facts(results, shown.lookup, shown.columns, shown.detectors, shown.inside),
        "sections": [section for sections in SECTIONS for section in sections(shown)],
        "words": shown.words,
        "css": thumbnails.css(),
    }


def _facts(
    results: Results, lookup: Lookup, columns: Sequence[Column], detectors: Sequence[str], inside: DatasetInfo
) -> list[dict[str, str]]:
    facts = []
    accuracy = lookup(MODEL, inside.name, "accuracy")
    if accuracy is not None and not math.isnan(accuracy.value):
        facts.append(
            _fact("Accuracy of the classifier", percent_text(accuracy.value), f"{inside.name}, n = {accuracy.n_id}")
        )
    rates = [c for c in columns if c.lower_is_better and not c.is_count]
    if rates and detectors:
        facts.append(_lowest_rate(results, rates, detectors))
    count = next((c for c in columns if c.is_count), None)
    if count is not None:
        total = len(results.dataset(count.dataset).class_names) or 1
        least = min((c.sort for c in count.cells if not math.isnan(c.sort)), default=math.nan)
        clean = sum(c.sort == 0 for c in count.cells)
        text = f"{clean} of {len(count.cells)} detectors"
        facts.append(_fact("Pass all unit tests", text, f"fewest failures: {least:.0f} of {total}"))
    images = sum(results.run.counts.values())
    facts.append(_fact("Images scored", f"{images:,}", f"by {len(detectors)} detectors"))
    return facts


def _lowest_rate(results: Results, rates: Sequence[Column], detectors: Sequence[str]) -> dict[str, str]:
    """The first detector, with its FPR on the OOD set, or its mean FPR over several."""
    means = {name: float(np.mean([c.cells[i].sort for c in rates])) for i, name in enumerate(results.detectors)}
    first = detectors[0]
    equal = sum(means[name] == means[first] for name in detectors) - 1
    value = f"{first} and {equal} others" if equal > 0 else first
    if len(rates) == 1:
        cell = rates[0].cells[results.detectors.index(first)]
        return _fact("Lowest FPR", value, f"{cell.text} {cell.interval} on {rates[0].dataset}")
    return _fact("Lowest FPR", value, f"{percent_text(means[first])}, mean of {len(rates)} OOD sets")


def _fact(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _subtitle(results: Results, inside: DatasetInfo) -> str:
    others = [d.name for d in results.datasets if d.role not in NAMES_OF_LABELS]
    trained = [d.name for d in results.datasets if d.role is Role.TRAIN]
    text = (
        f"Out-of-distribution report. In-distribution: {inside.name}. Tested on: {', '.join(others) or 'nothing else'}."
    )
    return text + (f" Detectors fitted on: {', '.join(trained)}." if trained else "")
