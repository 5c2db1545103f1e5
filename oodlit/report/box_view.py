"""What the page shows of one run of boxes, as plain values."""

import math
from pathlib import Path
from typing import Any

from oodlit.objects.results import ObjectResults
from oodlit.report.headline import percent_text
from oodlit.report.section import ChosenDetector, Fact, ShownBoxes, frame
from oodlit.report.sections.boxes import SECTIONS
from oodlit.results.displayed import displayed


def box_title(results: ObjectResults) -> str:
    """The title of a run, or the name of its object detector; empty if unknown."""
    return results.run.title or results.run.model


def box_view(title: str, results: ObjectResults, folder: Path | None, _prefix: str) -> dict[str, Any]:
    """Everything that the template needs of one run."""
    shown = ShownBoxes(displayed(results), folder, results.run)
    choice = box_choice(shown)
    return {
        "title": box_title(results) or title,
        "subtitle": f"Which predicted boxes are objects of unknown classes? In-distribution: {results.id_dataset.name}."
        f" Tested on: {', '.join(results.splits) or 'nothing else'}.",
        "alerts": [],
        "facts": _facts(shown, choice),
        "css": "",
        **frame(shown, SECTIONS, choice),
    }


def box_choice(shown: ShownBoxes) -> ChosenDetector | None:
    """The detector with the highest mean AP_U; None if there is no choice."""
    results, best = shown.results, next(iter(shown.detectors), "")
    if len(shown.detectors) < 2 or math.isnan(shown.means[best]):
        return None
    several = len(results.splits) > 1
    where = f"averaged over {len(results.splits)} splits" if several else f"on {results.splits[0]}"
    value = percent_text(shown.means[best])
    text = f"Choose {best}: of {len(shown.detectors)} {shown.unit}s, it has the highest ap_u {where} ({value})."
    rows = results.table[(results.table["metric"] == "ap_u") & results.table["dataset"].isin(results.splits)]
    low, high = (rows.pivot(index="detector", columns="dataset", values=end) for end in ("ci_low", "ci_high"))
    overlaps = ((high >= low.loc[best]) & (low <= high.loc[best])).all(axis="columns")
    if close := [name for name in shown.detectors if overlaps[name] and name != best]:
        whose = f"intervals of {shown.listed(close)} overlap" if close[1:] else f"interval of {close[0]} overlaps"
        text += f" {'On every split, the' if several else 'The'} {whose} with that of {best}."
    return ChosenDetector(best, f"average precision of unknown objects (ap_u): {value} {where}", text)


def _facts(shown: ShownBoxes, choice: ChosenDetector | None) -> list[Fact]:
    """The most important numbers of a run."""
    found, quality = [Fact("Detector to choose", *choice[:2])] if choice else [], shown.results.run.id_quality
    if "map" in quality:
        detail = f"{percent_text(quality['map50'])} at IoU .5"
        found.append(Fact("Mean average precision", percent_text(quality["map"]), detail))
    return found
