"""The sections of the page of images, in its order: each looks at one run and yields what it shows, or nothing."""

from collections.abc import Callable, Iterable, Mapping

from oodlit.report.section import Section, Shown
from oodlit.report.sections.images import (
    accepted,
    accuracy,
    classes,
    correlation,
    headline,
    measured,
    models,
    paired_runs,
    pools,
    published,
    roc,
    scores,
    time,
    unit_tests,
    words,
)
from oodlit.report.several import Several
from oodlit.results import Results

SECTIONS: tuple[Callable[[Shown], Iterable[Section]], ...] = (
    headline.sections,
    published.sections,
    roc.sections,
    classes.sections,
    pools.sections,
    scores.sections,
    unit_tests.sections,
    accepted.sections,
    time.sections,
    measured.sections,
    words.sections,
)

OF_ALL_RUNS: tuple[Callable[[Mapping[str, Results]], Iterable[Section]], ...] = (correlation.sections,)
"""Sections of all runs together, after them."""

SEVERAL: tuple[Callable[[Several], Iterable[Section]], ...] = (models.sections, paired_runs.sections, accuracy.sections)
"""Sections that compare several runs, before them."""

__all__ = ["OF_ALL_RUNS", "SECTIONS", "SEVERAL"]
