"""ROC curves: the FPR for every share of kept ID images."""

from collections.abc import Iterator
from typing import Any

from oodlit.base.roles import Role
from oodlit.report.headline import percent_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import roc_curves
from oodlit.results import DatasetInfo
from oodlit.results.plots import roc

COLOURED = 5
"""Initial number of colored curves; the reader can select up to six."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each OOD set with images."""
    counts = shown.results.run.counts
    for number, info in enumerate(shown.sets(Role.OOD)):
        if shown.detectors and counts.get(info.name) and counts.get(shown.inside.name):
            title = f"{info.name}: FPR versus kept ID images"
            yield Section(f"roc{number}", title, f"{info.name}: ROC", "roc.html", _curves(shown, info), number > 0)


def _curves(shown: Shown, info: DatasetInfo) -> dict[str, Any]:
    chart = roc.describe(shown.results, info.name, detectors=shown.detectors)
    again = _again(shown)
    places = [place for place, line in enumerate(chart.lines) if line.label not in again]
    colours = dict(zip(places, range(COLOURED), strict=False))
    return {
        "svg": roc_curves(chart, colours),
        "lines": [
            {
                "name": line.label,
                "colour": colours.get(place, -1),
                "title": f"{line.label}: FPR {percent_text(line.dots[0][0])} at {percent_text(line.dots[0][1])} TPR",
            }
            for place, line in enumerate(chart.lines)
        ],
        "images": f"all {len(shown.results.images(info.name))} OOD images" if info.class_names else "OOD images",
    }


def _again(shown: Shown) -> set[str]:
    """Detectors with the same curve as a better one, which are not colored initially."""
    groups: dict[str, set[str]] = {}
    for pair in shown.same:
        groups.setdefault(pair.detector, {pair.detector}).add(pair.other)
    return {name for group in groups.values() for name in sorted(group, key=shown.detectors.index)[1:]}
