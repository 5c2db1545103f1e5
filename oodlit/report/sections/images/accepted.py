"""OOD images that a detector accepts with the highest scores."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import numpy as np

from oodlit.base.roles import Role
from oodlit.report.section import Section, Shown
from oodlit.results import DatasetInfo


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if there are OOD sets."""
    if shown.sets(Role.OOD) and shown.detectors:
        groups = [_accepted(shown, name) for name in shown.detectors]
        content = {"groups": groups, "has_pictures": bool(shown.thumbnails.css())}
        yield Section("accepted", "Accepted with the highest score", "accepted images", "accepted.html", content)


def _accepted(shown: Shown, detector: str) -> dict[str, Any]:
    results, inside = shown.results, shown.inside
    rows, total = results.accepted(detector)
    reference = np.sort(results.scores.loc[results.scores["dataset"] == inside.name, detector].to_numpy())
    images = []
    for row in rows.to_dict("records"):
        info = results.dataset(row["dataset"])
        group, prediction, score = int(row["group"]), int(row["prediction"]), float(row[detector])
        above = np.searchsorted(reference, row[detector], side="left") / max(len(reference), 1)
        images.append(
            {
                "path": readable(row["key"]),
                "name": info.class_names[group] if 0 <= group < len(info.class_names) else info.name,
                "prediction": _class_name(inside, prediction),
                "detail": f"score {score:.4g}, above {100 * above:.0f} % of ID",
                "shot": shown.thumbnails.classes(row["key"]),
            }
        )
    total_ood = sum(results.run.counts.get(d.name, 0) for d in results.datasets if d.role is Role.OOD)
    end = f"; the first {len(images)}:" if images else "."
    detail = f"{detector} accepts {total} of {total_ood} OOD images{end}"
    return {"detector": detector, "detail": detail, "images": images}


def _class_name(inside: DatasetInfo, index: int) -> str:
    if index < 0:
        return ""
    return inside.class_names[index] if index < len(inside.class_names) else f"class {index}"


def readable(key: str) -> str:
    """Decode a key to its path, or return it unchanged if the path is not printable.

    Example:
        >>> readable("near/nine/1658%2Epng"), readable("a/line%0Abreak")
        ('near/nine/1658.png', 'a/line%0Abreak')
    """
    path = unquote(key)
    return path if path.isprintable() else key
