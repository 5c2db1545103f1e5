"""Where a detector comes from, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """The source of a detector; docs, tables and reports print it from here.

    Args:
        title: Title of the paper.
        authors: First author, or "A and B".
        venue: Conference or journal.
        year: Year of publication.
        url: Where the paper can be read.
        deviations: What differs from the authors' code or text; empty if nothing does.
    """

    title: str
    authors: str
    venue: str
    year: int
    url: str
    deviations: str = ""
