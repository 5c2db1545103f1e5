"""Paper references of detectors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """The source of a detector, printed in docs, tables and reports.

    Args:
        title: Title of the paper.
        authors: First author, or "A and B".
        venue: Conference or journal.
        year: Year of publication.
        url: Link to the paper.
        deviations: Differences from the authors' code or text; empty if there are none.
    """

    title: str
    authors: str
    venue: str
    year: int
    url: str
    deviations: str = ""
