"""Where the time of a run went, computed from the clocks of all processes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from oodlit.results.record_parts import TimeRecord
from oodlit.scoring.clock import PARTS, READING, Span


def time_record(states: Sequence[Mapping[str, Any]]) -> TimeRecord:
    """Where the time went, for the record of a run.

    Args:
        states: What `Clock.state` gave, of every process.

    Example:
        >>> one = {"spans": [("backbone", "", 3.0, 600), ("fit", "vim", 1.0, 0)], "reading": {"read": 0.5}}
        >>> two = {"spans": [("backbone", "", 5.0, 400)], "reading": {"read": 0.5}}
        >>> record = time_record([one, two])
        >>> record.mean
        {'total': 4.5, 'backbone': 4.0, 'fit': 0.5}
        >>> record.max, record.fit, record.reading, record.backbone_ms
        ({'total': 5.0, 'backbone': 5.0, 'fit': 1.0}, {'vim': 1.0}, {'read': 1.0}, 8.0)
    """
    spans = [_spans(state) for state in states]
    parts = {part: [_sum(own, part) for own in spans] for part in PARTS}
    parts = {"total": [sum(s.seconds for s in own) for own in spans]} | {n: v for n, v in parts.items() if any(v)}
    every = list(chain.from_iterable(spans))
    detectors = dict.fromkeys(span.detector for span in every if span.part == "fit" and span.detector)
    reading = {name: sum(state["reading"].get(name, 0.0) for state in states) for name in READING}
    backbone = [span for span in every if span.part == "backbone" and span.images]
    return TimeRecord(
        mean=_rounded({name: sum(values) / len(values) for name, values in parts.items()}),
        max=_rounded({name: max(values) for name, values in parts.items()}),
        fit=_rounded({name: max(_sum(own, "fit", name) for own in spans) for name in detectors}),
        reading=_rounded({name: seconds for name, seconds in reading.items() if seconds}),
        backbone_ms=_ms(backbone) if backbone else None,
    )


def ms_per_image(states: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds per row of each detector that scored any, over all processes; extra forward passes included.

    Args:
        states: As for `time_record`.

    Example:
        >>> of_two = [{"spans": [("scores", "knn", seconds, 500)], "reading": {}} for seconds in (1.0, 2.0)]
        >>> ms_per_image(of_two)
        {'knn': 3.0}
    """
    by_name: dict[str, list[Span]] = {}
    for state in states:
        for span in _spans(state):
            if span.part == "scores" and span.images:
                by_name.setdefault(span.detector, []).append(span)
    return {name: _ms(spans) for name, spans in by_name.items()}


def _spans(state: Mapping[str, Any]) -> list[Span]:
    return [Span(*values) for values in state["spans"]]


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


def _sum(spans: Iterable[Span], part: str, detector: str | None = None) -> float:
    return sum(s.seconds for s in spans if s.part == part and detector in (None, s.detector))


def _ms(spans: Sequence[Span]) -> float:
    return round(1000 * sum(s.seconds for s in spans) / sum(s.images for s in spans), 6)
