"""Open-set metrics at other thresholds."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from oodlit.objects.results import CURVES, TauPoint, tau_curve
from oodlit.report.section import Section, ShownBoxes
from oodlit.report.svg import draw

SHOWN = 6
"""Detectors whose curves are shown without a click."""


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section for each split."""
    results = shown.results
    for number, name in enumerate(results.splits):
        charts = [
            {"detector": detector, "svg": tau_curves(tau_curve(results, detector, name), results.settings.tpr)}
            for detector in shown.detectors
        ]
        content = {"charts": charts[:SHOWN], "more": charts[SHOWN:], "metrics": CURVES}
        if charts:
            yield Section(
                f"tau{number}", f"{name}: other thresholds", f"{name}: tau", "boxes/tau.html", content, number > 0
            )


def tau_curves(points: Sequence[TauPoint], tpr: float) -> Markup:
    """Draw metrics over the share of ID boxes that tau keeps, from all of them on the left to half on the right.

    Returns:
        An `<svg>` element.
    """
    return draw("boxes/tau.svg", lines=[_path(points, metric) for metric in CURVES], mark=2 * (1 - tpr))


def _path(points: Sequence[TauPoint], metric: str) -> str:
    """The path of a line, interrupted where the metric is undefined."""
    path, pen = [], "M"
    for point in points:
        value = point.values[metric]
        if not math.isnan(value):
            path.append(f"{pen}{2 * (1 - point.kept) * 340:.1f} {150 * (1 - value):.1f}")
        pen = "M" if math.isnan(value) else "L"
    return " ".join(path)
