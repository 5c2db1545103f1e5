"""The content of the page for one run of images, as plain values from `Results`."""

import math
from pathlib import Path
from typing import Any

from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.report.detector_choice import answer_tile, choose
from oodlit.report.headline import partial_text, percent_text
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
    return {
        "title": model_name(results) or title,
        "subtitle": _subtitle(results, shown.inside),
        "alerts": [*filter(None, [partial_text(results)])],
        "facts": _facts(shown),
        "css": thumbnails.css(),
        **frame(shown, SECTIONS, choose(shown)),
    }


def _facts(shown: Shown) -> list[Fact]:
    results, columns, detectors = shown.results, shown.columns, shown.detectors
    facts = []
    rates = [c for c in columns if c.lower_is_better and not c.is_count]
    if rates and detectors:
        facts.append(answer_tile(shown, rates))
    accuracy = shown.rows.get((MODEL, shown.inside.name, "accuracy"))
    if accuracy is not None and not math.isnan(accuracy.value):
        detail = f"{shown.inside.name}, n = {accuracy.n_id}"
        facts.append(Fact("Accuracy of the classifier", percent_text(accuracy.value), detail))
    if count := next((c for c in columns if c.is_count), None):
        least = min((c.sort for c in count.cells if not math.isnan(c.sort)), default=math.nan)
        text, detail = "undefined", "some tests, or the ID set, have no images"
        if not math.isnan(least):
            text = f"{sum(c.sort == 0 for c in count.cells)} of {len(count.cells)} detectors"
            number = len(results.dataset(count.dataset).class_names) or 1
            detail = f"the best fails {least:.0f} of {number}" if least else f"number of unit tests: {number}"
        facts.append(Fact("Pass all unit tests", text, detail))
    facts.append(Fact("Images scored", f"{sum(results.run.counts.values()):,}", f"by {len(detectors)} detectors"))
    return facts


def _subtitle(results: Results, inside: DatasetInfo) -> str:
    tested = ", ".join(d.name for d in results.datasets if d.role not in NAMES_OF_LABELS) or "nothing else"
    trained = ", ".join(d.name for d in results.datasets if d.role is Role.TRAIN)
    text = f"Out-of-distribution report. In-distribution: {inside.name}. Tested on: {tested}."
    return text + (f" Detectors fitted on: {trained}." if trained else "")
