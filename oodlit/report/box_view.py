"""What the page shows of one run of boxes, as plain values."""

from pathlib import Path
from typing import Any

from oodlit.objects.results import ObjectResults
from oodlit.report.headline import percent_text
from oodlit.report.section import Fact, ShownBoxes, frame
from oodlit.report.sections.boxes import SECTIONS
from oodlit.results.display_names import displayed


def box_title(results: ObjectResults) -> str:
    """The title of a run, or the name of its object detector; empty if unknown."""
    return results.run.title or results.run.model


def box_view(title: str, results: ObjectResults, folder: Path | None, _prefix: str) -> dict[str, Any]:
    """Everything that the template needs of one run."""
    shown = ShownBoxes(displayed(results), folder, results.run)
    return {
        "title": box_title(results) or title,
        "subtitle": f"Which predicted boxes are objects of unknown classes? In-distribution: {results.id_dataset.name}."
        f" Tested on: {', '.join(results.splits) or 'nothing else'}.",
        "alert": "",
        "facts": _facts(shown),
        "css": "",
        **frame(shown, SECTIONS),
    }


def _facts(shown: ShownBoxes) -> list[Fact]:
    """The most important numbers of a run."""
    results = shown.results
    settings, quality = results.settings, results.run.id_quality
    known = results.row("no_boxes", dataset=results.id_dataset.name)
    found = [
        Fact("Confidence threshold t*", f"{settings.t_star:.4g}", results.run.t_star_rule or "given"),
        Fact("Rule of the OOD threshold tau", settings.rule, f"{settings.rules} rules, IoU {settings.iou:g}"),
        Fact(f"Boxes of {results.id_dataset.name}", f"{known['n_id']:,}", f"in {known['n_images']:,} images, above t*"),
    ]
    if results.splits:
        found.append(Fact("Best AP_U", next(iter(shown.detectors), "none"), f"on {results.splits[0]}"))
    if "map" in quality:
        detail = f"{percent_text(quality['map50'])} at IoU .5"
        found.insert(2, Fact("Mean average precision", percent_text(quality["map"]), detail))
    return found
