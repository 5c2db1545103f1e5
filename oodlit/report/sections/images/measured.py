"""Data, detectors, remarks, and the record of a run."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from oodlit.report.headline import interval_text, percent_text
from oodlit.report.record import record_content
from oodlit.report.section import Section, Shown
from oodlit.results.names import MODEL


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section."""
    content = record_content(shown, _data(shown), shown.results.run.ms_per_image)
    yield Section("measured", "What was measured", "measured", "measured.html", content, is_folded=True)


def _data(shown: Shown) -> dict[str, Any]:
    """Role, images, classes, accuracy and skipped images of every data set."""
    run = shown.results.run
    skipped = Counter(image.key.partition("/")[0] for image in run.skipped)
    rows = []
    for info in shown.results.datasets:
        accuracy = shown.rows.get((MODEL, info.name, "accuracy"))
        text = "" if accuracy is None else f"{percent_text(accuracy.value)} {interval_text(accuracy)}"
        counts = (run.counts.get(info.name, 0), len(info.class_names) or "")
        rows.append((info.name, str(info.role), counts, (text, skipped.get(info.name, ""))))
    return {"counts": ("images", "classes"), "texts": ("accuracy", "skipped"), "rows": rows}
