"""Where the time of a run went."""

from collections.abc import Iterator
from typing import Any

from oodlit.report.section import Section, Shown
from oodlit.results import Results


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if times were recorded."""
    if content := time_view(shown.results):
        yield Section("time", "Where the time went", "time", "time.html", content, is_folded=True)


def time_view(results: Results) -> dict[str, Any] | None:
    """Times of the parts of the run, of reading, and of the network; None if they were not recorded."""
    time = results.run.time
    mean = dict(time.mean)
    if "total" not in mean:  # from a caller who measured less
        return None
    most, total = mean | time.max, mean.pop("total")
    parts = [
        {"name": name, "seconds": _seconds(value), "share": _share(value, total), "most": _seconds(most[name])}
        for name, value in mean.items()
    ]
    return {
        "total": _seconds(total),
        "processes": results.run.trainer.processes,
        "parts": parts,
        "reading": [
            {"name": n, "seconds": _seconds(s), "share": _share(s, sum(time.reading.values()))}
            for n, s in time.reading.items()
        ],
        "has_readers": bool(results.run.data.num_workers),
        "backbone": "" if time.backbone_ms is None else f"{time.backbone_ms:.3g}",
    }


def _seconds(value: float) -> str:
    """Format seconds with at least three digits, if there are as many.

    Example:
        >>> _seconds(0.0123), _seconds(4.5678), _seconds(12345.6)
        ('0.012', '4.57', '12,346')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.3f}"


def _share(value: float, total: float) -> float:
    return round(100 * value / total, 1) if total else 0.0
