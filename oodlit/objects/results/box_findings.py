"""Findings about boxes whose coordinates or classes probably mean something else than expected."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from oodlit.base.roles import Role
from oodlit.objects.detections import CORNERS
from oodlit.objects.results.tables import Tables
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo

MARGIN = 0.05
"""Fraction of a side of the image by which boxes of detectors that do not crop them may leave it."""
OUTSIDE = 0.2
"""Smallest fraction of the boxes of a data set that leave their image, for a finding."""
FEW = 10, 50, 20
"""Numbers of boxes below which they leave their image, fill only a part of it, or have other classes by accident."""
PART, WHOLE = 2 / 3, 0.9
"""Boxes that end before this fraction of the sides, although objects reach the other one, have another scale."""
HIT, AGREEMENT = 0.5, 0.25
"""Overlap of a hit, and the fraction of hits with the class of the object below which classes are in another order."""


def box_findings(tables: Tables, datasets: Sequence[DatasetInfo], class_names: Sequence[str]) -> Iterator[Finding]:
    """Findings about all data sets of a run.

    Args:
        tables: Boxes, images and objects.
        datasets: The data sets.
        class_names: The ID classes in the order of the logits; empty = unknown.
    """
    for info in datasets:
        boxes, objects = (table[table["dataset"] == info.name] for table in (tables.boxes, tables.objects))
        ends, of_objects = (_relative(table, tables.images) for table in (boxes, objects))
        if text := _of_places(ends, of_objects):
            yield Finding("places", f"{info.name}: {text}")
        if info.role is Role.ID and class_names and (text := _of_classes(boxes, objects, class_names)):
            yield Finding("box_classes", f"{info.name}: {text}")


def _relative(table: pd.DataFrame, images: pd.DataFrame) -> Float[np.ndarray, "boxes 4"]:
    """Corners as fractions of the sides of their image; without those of images of unknown size."""
    sizes = images.set_index("key")[["width", "height"]].loc[table["image"]].to_numpy(dtype=np.float64)
    known = (sizes > 0).all(axis=1)
    relative: np.ndarray = table[CORNERS].to_numpy(dtype=np.float64)[known] / np.tile(sizes[known], 2)
    return relative


def _of_places(boxes: Float[np.ndarray, "boxes 4"], objects: Float[np.ndarray, "objects 4"]) -> str:
    leave = int(((boxes < -MARGIN) | (boxes > 1 + MARGIN)).any(axis=1).sum())
    if len(boxes) >= FEW[0] and leave >= OUTSIDE * len(boxes):
        return (
            f"{leave} of {len(boxes)} boxes leave their image by more than {MARGIN:.0%} of its side; they may be"
            " corners (xmin, ymin, xmax, ymax) where x, y, width and height are expected, or pixels of a larger image"
        )
    if len(boxes) >= FEW[1] and len(objects) and boxes.max() < PART and objects.max() > WHOLE:
        return (
            f"all {len(boxes)} boxes end within the first {boxes.max():.0%} of their image, but objects do not; they"
            " may be percentages, or pixels of a smaller image"
        )
    return ""


def _of_classes(boxes: pd.DataFrame, objects: pd.DataFrame, class_names: Sequence[str]) -> str:
    code = {name: position for position, name in enumerate(class_names)}
    true = objects.drop_duplicates("object").set_index("object")["class"].map(code)
    hits = boxes[(boxes["overlap"] >= HIT) & (boxes["prediction"] >= 0)]
    steps = hits["prediction"].to_numpy() - true.loc[hits["object"]].to_numpy()
    if len(steps) < FEW[2] or (steps == 0).mean() >= AGREEMENT:
        return ""
    values, counts = np.unique(steps, return_counts=True)
    step, share = int(values[counts.argmax()]), counts.max() / len(steps)
    shifted = f"; for {share:.0%} of them, it is the position of the object's class {step:+d}" if share > 0.5 else ""
    return (
        f"only {int((steps == 0).sum())} of {len(steps)} boxes that hit an object have its class{shifted}. Check that"
        " category ids (from 0 or from 1) and class_names belong to the detector"
    )
