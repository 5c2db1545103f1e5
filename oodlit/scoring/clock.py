"""Measure where the time of a run goes: at any moment, a process works on exactly one part of the run."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch

MOST_EVENTS = 4096
"""Largest number of pending device events; beyond it, finished ones are added up."""
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


class Clock:
    """The time of one process by part of the run, without gaps or overlaps: the parts sum to the total time.

    The work of a CUDA device is queued, and nobody waits for it here: the moments are events in its queue, which are
    added up when they have passed. Other devices that queue their work are measured by the host.

    Args:
        device: Where the backbone and the detectors compute.

    Example:
        >>> clock = Clock()
        >>> clock.enter("backbone", images=64)
        >>> clock.enter("scores", "msp", images=64)
        >>> clock.enter("other")
        >>> [(span.part, span.detector, span.images) for span in clock.spans() if span.images]
        [('backbone', '', 64), ('scores', 'msp', 64)]
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._is_cuda = torch.device(device).type == "cuda"
        self._sums: dict[tuple[str, str], tuple[float, int]] = {}
        self._passed: deque[tuple[tuple[str, str], int, Any]] = deque()
        self.reading = dict.fromkeys(READING, 0.0)
        """Seconds spent reading, by the worker processes or, without workers, by this one (then part of `WAITING`)."""
        self.enter("preparation")

    def enter(self, part: str, detector: str = "", images: int = 0) -> None:
        """Begin another part of the run: the time until the next call counts as this part.

        Args:
            part: One of `PARTS`.
            detector: Name of the detector that is fitted or computes scores.
            images: Number of images that are processed.
        """
        self._passed.append(((part, detector), images, _event() if self._is_cuda else time.perf_counter()))
        if not self._is_cuda or len(self._passed) > MOST_EVENTS:
            self._add_up(wait=False)

    def wait_for_data(self) -> None:
        """Begin to wait for the next batch."""
        self.enter(WAITING)

    def read(self, seconds: Mapping[str, float]) -> None:
        """Add the times that a reader measured for the samples of a batch."""
        for name, value in seconds.items():
            self.reading[name] += value

    def spans(self, *, wait: bool = True) -> list[Span]:
        """Return the time of each part so far, without the part in progress.

        Args:
            wait: Whether to wait for unfinished work of the device; otherwise that work is left out.
        """
        self._add_up(wait=wait)
        return [Span(*key, *values) for key, values in self._sums.items()]

    def state(self, *, wait: bool = False) -> dict[str, Any]:
        """All measured times as plain values, by default without unfinished work of the device."""
        return {"spans": [astuple(span) for span in self.spans(wait=wait)], "reading": dict(self.reading)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Add the times that `state` returned in an earlier start of the same run."""
        for part, detector, seconds, images in state["spans"]:
            self._add((part, detector), seconds, images)
        self.read(state["reading"])

    def _add_up(self, *, wait: bool) -> None:
        passed = self._passed
        while len(passed) > 1 and (not self._is_cuda or wait or passed[1][2].query()):
            key, images, start = passed.popleft()
            self._add(key, _seconds(start, passed[0][2]), images)

    def _add(self, key: tuple[str, str], seconds: float, images: int) -> None:
        before = self._sums.get(key, (0.0, 0))
        self._sums[key] = (before[0] + seconds, before[1] + images)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(start: Any, end: Any) -> float:
    if isinstance(end, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def latest(states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the last of several states of one process; None if there are none.

    Example:
        >>> early, late = ({"spans": [("fit", "", s, 0)], "reading": {}} for s in (1.0, 2.0))
        >>> latest([late, early]) == late
        True
    """
    return max(states, key=lambda state: sum(span[2] for span in state["spans"]), default=None)
