"""OOD images that a detector accepts with the highest scores."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from oodlit.report.section import Section, Shown
from oodlit.report.terms import readable
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if there are OOD sets."""
    if shown.sets(Role.OOD) and shown.detectors:
        groups = [_accepted(shown.results, name, shown.inside, shown.thumbnails) for name in shown.detectors]
        content = {"groups": groups, "has_pictures": bool(shown.thumbnails.css())}
        yield Section("accepted", "Accepted with the highest score", "accepted images", "accepted.html", content)


def _accepted(results: Results, detector: str, inside: DatasetInfo, thumbnails: ThumbnailStyles) -> dict[str, Any]:
    rows, total = results.accepted(detector)
    reference = np.sort(results.scores.loc[results.scores["dataset"] == inside.name, detector].to_numpy())
    images = []
    for row in rows.to_dict("records"):
        info = results.dataset(row["dataset"])
        group, prediction, score = int(row["group"]), int(row["prediction"]), float(row[detector])
        name = info.class_names[group] if 0 <= group < len(info.class_names) else info.name
        above = np.searchsorted(reference, row[detector], side="left") / max(len(reference), 1)
        images.append(
            {
                "path": readable(row["key"]),
                "name": name,
                "prediction": _class_name(inside, prediction),
                "detail": f"score {score:.4g}, above {100 * above:.0f} % of ID",
                "shot": thumbnails.classes(row["key"]),
            }
        )
    total_ood = sum(results.run.counts.get(d.name, 0) for d in results.datasets if d.role is Role.OOD)
    detail = f"{detector} accepts {total} of {total_ood} OOD images" + (
        f"; the first {len(images)}:" if images else "."
    )
    return {"detector": detector, "detail": detail, "images": images}


def _class_name(inside: DatasetInfo, index: int) -> str:
    if index < 0:
        return ""
    return inside.class_names[index] if index < len(inside.class_names) else f"class {index}"
