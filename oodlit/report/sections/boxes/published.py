"""Published figures of the splits of FindMeIfYouCan, beside those of the run."""

import math
from collections.abc import Iterator
from typing import Any

from oodlit.objects.published import fmiyc
from oodlit.objects.results import ObjectResults
from oodlit.report.section import Section, ShownBoxes
from oodlit.results.glossary import value_text


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section, if the run has a split of the benchmark."""
    tables = [found for name in shown.results.splits if (found := _published(shown.results, name))]
    if tables:
        yield Section("published", "Published figures", "published", "boxes/published.html", {"tables": tables})


def _published(results: ObjectResults, name: str) -> dict[str, Any] | None:
    """Published figures of a split beside those of the run; None if it is not part of the benchmark."""
    split = fmiyc.split_named(name)
    if split is None:
        return None
    figures = fmiyc.figures(split.name)
    architectures = list(dict.fromkeys(figure.architecture for figure in figures))
    printed = {(figure.architecture, figure.method, figure.metric): figure.value for figure in figures}
    empty = fmiyc.images_without_boxes(split.name)
    ours: float | None = results.value("no_boxes", dataset=name)
    rows = [("network", "no_boxes", [ours, *(empty.get(name) for name in architectures)])]
    for method, key in fmiyc.METHODS.items():
        own = next((d for d in results.detectors if d.partition("[")[0] == key), None)
        for metric in fmiyc.METRICS.values():
            values = [printed.get((architecture, method, metric)) for architecture in architectures]
            if own is not None and any(value is not None for value in values):
                known = metric in set(results.table["metric"])
                ours = results.value(metric, dataset=name, detector=own) if known else None
                rows.append((method, metric, [ours, *values]))
    n_images = int((results.images["dataset"] == name).sum())
    return {
        "name": name,
        "split": split,
        "n_images": n_images,
        "architectures": architectures,
        "rows": [
            (method, metric, [value_text(math.nan if value is None else value) for value in values])
            for method, metric, values in rows
        ],
    }
