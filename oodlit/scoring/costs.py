"""Which detectors are slower than the backbone, measured on the first batches."""

from collections.abc import Sequence

from oodlit.scoring.clock import Clock, Span

WARM_UP = 1
"""Number of first test batches to skip: they choose algorithms, compile, and fill caches."""
MEASURED = 2
"""Number of test batches to measure."""
LEAST_SECONDS = 10.0
"""Detectors that add less time than this to a run are not mentioned."""


class Costs:
    """Compares the detectors with the backbone during the first test batches of a run.

    Args:
        clock: The clock of the run.
        than: What they are compared with.
    """

    def __init__(self, clock: Clock, than: str = "the backbone") -> None:
        self._clock, self._than = clock, than
        self._batches = 0
        self._before: Sequence[Span] = ()
        self._is_over, self._processes = False, 1
        self._to_come = self._images = self._rows = 0

    def expect(self, images: Sequence[int], processes: int) -> None:
        """Set the number of test images of each stream; every process reads a part of these images."""
        self._to_come, self._processes = sum(-(-number // processes) for number in images), processes

    def count(self, images: int, rows: int) -> None:
        """Count a scored test batch with its images and rows."""
        self._batches += 1
        self._images, self._rows = self._images + images, self._rows + rows
        self._to_come = max(self._to_come - images, 0)
        if self._batches == WARM_UP:
            self._before = self._clock.spans(wait=False)

    def text(self) -> str:
        """Return the cost of slow detectors as text, once it is measured; empty in all other calls."""
        if self._is_over or self._batches < WARM_UP + MEASURED:
            return ""
        spans = since(self._before, self._clock.spans(wait=False))
        # A device may lag behind: what it has not done yet is not measured yet.
        if not any(span.part == "scores" and span.images for span in spans):
            return ""
        self._is_over = True
        line = longer_than_backbone(spans, self._to_come, self._than, rows=self._rows / max(self._images, 1))
        return f"{line} of each process" if line and self._processes > 1 else line


def since(before: Sequence[Span], now: Sequence[Span]) -> list[Span]:
    """Times measured between the two batches."""
    earlier = {(span.part, span.detector): span for span in before}
    pairs = ((span, earlier.get((span.part, span.detector), Span("", "", 0.0, 0))) for span in now)
    return [Span(s.part, s.detector, s.seconds - e.seconds, s.images - e.images) for s, e in pairs]


def longer_than_backbone(spans: Sequence[Span], to_come: int, than: str = "the backbone", *, rows: float = 1.0) -> str:
    """Describe the detectors that take longer than the backbone, and the time that they add to the run.

    Args:
        spans: Times of some batches.
        to_come: Images that are still to be scored.
        than: What they are compared with.
        rows: How many rows an image has.

    Returns:
        One line; empty if there are none, or if they add less than `LEAST_SECONDS`.

    Example:
        >>> scores = [Span("scores", "msp", 0.1, 100), Span("scores", "knn", 2.0, 100)]
        >>> longer_than_backbone([Span("backbone", "", 0.4, 100), *scores], 90_000)
        'slower than the backbone (4 ms/image): knn 20 ms/image; this adds about 30 min for the remaining 90,000 images'
    """
    backbone = sum(_ms(span) for span in spans if span.part == "backbone")
    costs = {span.detector: rows * _ms(span) for span in spans if span.part == "scores"}
    longer = {name: ms for name, ms in sorted(costs.items(), key=lambda item: -item[1]) if ms > backbone}
    added = sum(longer.values()) / 1000 * to_come
    if added < LEAST_SECONDS:
        return ""
    listed = ", ".join(f"{name} {ms:.3g} ms/image" for name, ms in longer.items())
    more = f"this adds about {duration(added)} for the remaining {to_come:,} images"
    return f"slower than {than} ({backbone:.3g} ms/image): {listed}; {more}"


def _ms(span: Span) -> float:
    return 1000 * span.seconds / span.images if span.images else 0.0


def duration(seconds: float) -> str:
    """A length of time as text.

    Example:
        >>> [duration(s) for s in (42.4, 100, 5400)]
        ['42 s', '1.7 min', '1.5 h']
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"
