"""A map of the features: ID classes and OOD sets on the first two principal axes of training features."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from oodlit.report.headline import percent_text
from oodlit.report.section import Section, Shown
from oodlit.report.svg import draw
from oodlit.results.files.image_features import MapPoint

WIDTH, HEIGHT = 860, 480
"""Size of the plane in units of the figure."""
MAX_NAMES = 20
"""With more ID classes, their names are not written on the map."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if the run kept features of images."""
    found = shown.features
    if found.points.get("") and len(found.points) > 1:
        order = sorted(filter(None, found.points), key=lambda name: name != shown.inside.name)  # it has the first color
        colours = {name: f"--s{index}" for index, name in enumerate(order)}
        content = {
            "svg": _drawn(shown, found.points, found.shares, colours),
            "legend": [{"name": name, "colour": colour} for name, colour in colours.items()],
            "num_train": len(found.points[""]),
            "explained": percent_text(sum(found.shares)),
        }
        yield Section("map", "Where do images lie in the feature space?", "map", "map.html", content, is_folded=True)


def _drawn(
    shown: Shown, points: Mapping[str, Sequence[MapPoint]], shares: Sequence[float], colours: Mapping[str, str]
) -> Any:
    every = np.array([(point.x, point.y) for own in points.values() for point in own])
    low, high = every.min(axis=0), every.max(axis=0)
    span = np.maximum(high - low, 1e-12)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (np.array([x, y]) - low) / span
        return round(30 + float(across) * WIDTH, 1), round(10 + float(1 - up) * HEIGHT, 1)

    names = shown.inside.class_names
    counts = Counter(point.label for point in points[""])
    labels = []
    for label in sorted(counts) if len(counts) <= MAX_NAMES else ():
        if 0 <= label < len(names):
            own = np.array([(point.x, point.y) for point in points[""] if point.label == label])
            labels.append((names[label], *place(*np.median(own, axis=0).tolist())))
    return draw(
        "map.svg",
        train=[place(point.x, point.y) for point in points[""]],
        sets=[(name, colour, [place(p.x, p.y) for p in points[name]]) for name, colour in colours.items()],
        labels=labels,
        axes=[f"principal axis {number} ({percent_text(share)})" for number, share in enumerate(shares, 1)],
        width=WIDTH + 40,
        height=HEIGHT + 40,
    )
