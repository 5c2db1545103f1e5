"""The content of the page for one run of images, as plain values from `Results`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.report.detector_choice import choose
from oodlit.report.headline import Column, mean_rates, partial_text, percent_text
from oodlit.report.section import Fact, Shown, frame
from oodlit.report.sections.images import SECTIONS
from oodlit.report.thumbnails import ThumbnailStyles, keys_to_show, load_thumbnails, neighbor_keys
from oodlit.results import DatasetInfo, Results
from oodlit.results.displayed import displayed
from oodlit.results.files.image_features import read_features
from oodlit.results.names import MODEL
from oodlit.results.plots.select import model_name


def view(title: str, results: Results, folder: Path | None, prefix: str) -> dict[str, Any]:
    """Everything that the template needs of one run; `prefix` begins the CSS classes of its thumbnails."""
    features = read_features(folder)
    keys = [*keys_to_show(results), *neighbor_keys(features)]
    thumbnails = ThumbnailStyles(load_thumbnails(folder, keys), prefix)
    shown = Shown(displayed(results), thumbnails, results.run, features)
    choice = choose(shown)
    return {
        "title": model_name(results) or title,
        "subtitle": _subtitle(results, shown.inside),
        "alert": partial_text(results),
        "facts": _facts(shown),
        "css": thumbnails.css(),
        **frame(shown, SECTIONS, answer=choice.sentence if choice else "", kept=[choice.detector] if choice else ()),
    }


def _facts(shown: Shown) -> list[Fact]:
    results, columns, detectors = shown.results, shown.columns, shown.detectors
    facts = []
    rates = [c for c in columns if c.lower_is_better and not c.is_count]
    if rates and detectors:
        facts.append(_answer(shown, rates))
    accuracy = shown.rows.get((MODEL, shown.inside.name, "accuracy"))
    if accuracy is not None and not math.isnan(accuracy.value):
        detail = f"{shown.inside.name}, n = {accuracy.n_id}"
        facts.append(Fact("Accuracy of the classifier", percent_text(accuracy.value), detail))
    if count := next((c for c in columns if c.is_count), None):
        least = min((c.sort for c in count.cells if not math.isnan(c.sort)), default=math.nan)
        text, detail = "undefined", "some tests have no images"
        if not math.isnan(least):
            text = f"{sum(c.sort == 0 for c in count.cells)} of {len(count.cells)} detectors"
            detail = f"fewest failures: {least:.0f} of {len(results.dataset(count.dataset).class_names) or 1}"
        facts.append(Fact("Pass all unit tests", text, detail))
    facts.append(Fact("Images scored", f"{sum(results.run.counts.values()):,}", f"by {len(detectors)} detectors"))
    return facts


def _answer(shown: Shown, rates: Sequence[Column]) -> Fact:
    """The detector to choose with its FPR on the OOD set, or its mean FPR over several; else the lowest FPR."""
    results, choice = shown.results, choose(shown)
    means = mean_rates(results, rates)
    name = choice.detector if choice else shown.detectors[0]
    if math.isnan(means[name]):
        places = {(column.dataset, column.metric) for column in rates}
        reasons = (one.reason for one in results.run.undefined if (one.dataset, one.metric) in places)
        return Fact("Lowest FPR", "undefined", next(reasons, ""))
    cell = rates[0].cells[results.detectors.index(name)]
    alone = f"{cell.text} {cell.interval} on {rates[0].dataset}"
    value = alone if len(rates) == 1 else f"{percent_text(means[name])}, mean of {len(rates)} OOD sets"
    if choice is None:
        return Fact("Lowest FPR", name, value)
    return Fact("Detector to choose", name, "; ".join(filter(None, (f"FPR {value}", choice.short))))


def _subtitle(results: Results, inside: DatasetInfo) -> str:
    tested = ", ".join(d.name for d in results.datasets if d.role not in NAMES_OF_LABELS) or "nothing else"
    trained = ", ".join(d.name for d in results.datasets if d.role is Role.TRAIN)
    text = f"Out-of-distribution report. In-distribution: {inside.name}. Tested on: {tested}."
    return text + (f" Detectors fitted on: {trained}." if trained else "")
