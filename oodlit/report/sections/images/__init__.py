"""Sections of the page of image results, in page order; each yields its content for one run, or nothing."""

from collections.abc import Callable, Iterable, Mapping

from oodlit.report.section import Section, Shown
from oodlit.report.sections.images import (
    accepted,
    accuracy,
    classes,
    correlation,
    headline,
    map,
    means,
    measured,
    paired_runs,
    pools,
    published,
    risk,
    roc,
    runs,
    scores,
    side_by_side,
    time,
    unit_tests,
    words,
)
from oodlit.report.several import Several
from oodlit.results import Results

SECTIONS: tuple[Callable[[Shown], Iterable[Section]], ...] = (
    headline.sections,
    means.sections,
    published.sections,
    roc.sections,
    risk.sections,
    classes.sections,
    pools.sections,
    scores.sections,
    unit_tests.sections,
    accepted.sections,
    map.sections,
    time.sections,
    measured.sections,
    words.sections,
)

OF_ALL_RUNS: tuple[Callable[[Mapping[str, Results]], Iterable[Section]], ...] = (correlation.sections,)
"""Sections about all runs together, shown after the sections of the runs."""

SEVERAL: tuple[Callable[[Several], Iterable[Section]], ...] = (
    side_by_side.sections,
    runs.sections,
    paired_runs.sections,
    accuracy.sections,
)
"""Sections that compare several runs, shown before the sections of the runs."""

__all__ = ["OF_ALL_RUNS", "SECTIONS", "SEVERAL"]
