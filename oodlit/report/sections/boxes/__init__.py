"""Sections of the object report, in page order; each yields its content for one run, or nothing."""

from collections.abc import Callable, Iterable

from oodlit.report.section import Section, ShownBoxes
from oodlit.report.sections.boxes import measured, pictures, published, splits, tau, words
from oodlit.report.sections.images import runs, side_by_side
from oodlit.report.several import Several

SECTIONS: tuple[Callable[[ShownBoxes], Iterable[Section]], ...] = (
    splits.sections,
    pictures.sections,
    tau.sections,
    published.sections,
    measured.sections,
    words.sections,
)

SEVERAL: tuple[Callable[[Several], Iterable[Section]], ...] = (side_by_side.sections, runs.sections)
"""Sections that compare several runs, shown before the sections of the runs."""

__all__ = ["SECTIONS", "SEVERAL"]
