"""The time that one part of a run takes."""

from dataclasses import dataclass

OTHER = "other"
WAITING = "waiting for data"
PARTS = ("preparation", WAITING, "backbone", "statistics", "fit", "scores", "waiting for processes", "metrics", OTHER)
"""Activities of a process, in the order of records and pages. `WAITING` includes copying to the device."""
READING = ("read", "decode", "transform")
"""Work per sample, in worker processes if there are any."""


@dataclass(frozen=True)
class Span:
    """Time of one part.

    Args:
        part: One of `PARTS`.
        detector: Whose fit or scores; empty for other parts.
        seconds: Sum over all times that the process was in this part.
        images: How many images went through it.
    """

    part: str
    detector: str
    seconds: float
    images: int
