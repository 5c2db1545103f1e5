"""Histograms of the scores."""

from collections.abc import Iterator

from oodlit.base.roles import Role
from oodlit.report.section import Section, Shown
from oodlit.report.svg import score_histogram
from oodlit.results.plots.score_histograms import histogram

_MAX_OUTLINES = 5
"""Maximum number of OOD sets in a histogram, with the colors `--s1` to `--s5` of the page."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if there is a detector."""
    others = shown.sets(Role.OOD, Role.POOL)
    datasets = [shown.inside, *others[:_MAX_OUTLINES]]
    if shown.detectors:
        images = {info.name: shown.results.images(info.name) for info in datasets}
        charts = [
            histogram(name, {key: rows[name].to_numpy() for key, rows in images.items()}, shown.results.threshold(name))
            for name in shown.detectors
        ]
        content = {
            "histograms": [(chart, score_histogram(chart)) for chart in charts],
            "kinds": {chart.labels[1] for chart in charts},
            "num_outlines": _MAX_OUTLINES,
            "num_ood_sets": len(others),
            "legend": [{"name": info.name, "colour": f"--s{index}"} for index, info in enumerate(datasets)],
        }
        yield Section("scores", "Scores", "scores", "scores.html", content)
