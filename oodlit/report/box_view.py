"""What the page shows of one run of boxes, as plain values."""

from pathlib import Path
from typing import Any

from oodlit.objects.results import ObjectResults
from oodlit.report.box_run import ShownBoxes
from oodlit.report.headline import percent_text
from oodlit.report.sections.boxes import SECTIONS


def box_title(results: ObjectResults) -> str:
    """The title of a run, or the name of its object detector; empty if unknown."""
    return results.run.title or results.run.model


def box_view(title: str, results: ObjectResults, folder: Path | None, _prefix: str) -> dict[str, Any]:
    """Everything that the template needs of one run."""
    shown = ShownBoxes(results, folder)
    splits = ", ".join(results.splits) or "nothing else"
    return {
        "title": box_title(results) or title,
        "subtitle": f"Which predicted boxes are objects of unknown classes? In-distribution: {results.id_dataset.name}."
        f" Tested on: {splits}.",
        "alert": "",
        "findings": results.findings,
        "caveat": results.run.caveat,
        "facts": _facts(shown),
        "sections": [section for sections in SECTIONS for section in sections(shown)],
        "words": shown.words,
        "css": "",
    }


def _facts(shown: ShownBoxes) -> list[dict[str, str]]:
    """The most important numbers of a run."""
    results = shown.results
    settings, quality = results.settings, results.run.id_quality
    known = results.row("no_boxes", dataset=results.id_dataset.name)
    found = [
        ("Confidence threshold t*", f"{settings.t_star:.4g}", results.run.t_star_rule or "given"),
        ("Rule of the OOD threshold tau", settings.rule, f"{settings.rules} rules, IoU {settings.iou:g}"),
        (f"Boxes of {results.id_dataset.name}", f"{known['n_id']:,}", f"in {known['n_images']:,} images, above t*"),
    ]
    if results.splits:
        found.append(("Best AP_U", next(iter(shown.detectors), "none"), f"on {results.splits[0]}"))
    if "map" in quality:
        detail = f"{percent_text(quality['map50'])} at IoU .5"
        found.insert(2, ("Mean average precision", percent_text(quality["map"]), detail))
    return [{"label": label, "value": value, "detail": detail} for label, value, detail in found]
