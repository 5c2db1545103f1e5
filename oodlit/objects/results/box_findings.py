"""Findings about boxes that probably have another coordinate format or another order of classes than expected."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from oodlit.base.roles import Role
from oodlit.objects.detections import CORNERS
from oodlit.objects.files.box_bounds import are_relative
from oodlit.objects.results.tables import Tables
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo

MARGIN = 0.05
"""Fraction of a side of the image by which boxes of detectors that do not crop them may leave it."""
OUTSIDE = 0.2
"""Smallest fraction of the boxes of a data set that leave their image, for a finding."""
FEW = 10, 50, 20
"""Numbers of boxes below which the findings about borders, scale and classes could be accidental."""
PART, WHOLE = 2 / 3, 0.9
"""Boxes have another scale if all end before the first fraction of the image, but objects reach the second one."""
FEW_RELATIVE = 3, 0.01
"""Smallest number and fraction of relative boxes for a finding; for objects, one is enough."""
LARGE = 150
"""Smallest side of images in which boxes that all end within 100 pixels look like percentages."""
HIT, AGREEMENT = 0.5, 0.25
"""Overlap of a hit, and the fraction of hits with the class of the object below which classes are in another order."""


def box_findings(tables: Tables, datasets: Sequence[DatasetInfo], class_names: Sequence[str]) -> Iterator[Finding]:
    """Findings about all data sets of a run.

    Args:
        tables: Boxes, images and objects.
        datasets: The data sets.
        class_names: The ID classes in the order of the logits; empty = unknown.
    """
    sides = tables.images.set_index("key")[["width", "height"]]  # 0 = unknown
    for info in datasets:
        boxes, objects = (table[table["dataset"] == info.name] for table in (tables.boxes, tables.objects))
        sizes, of_objects = (sides.loc[table["image"]].to_numpy(dtype=np.int64) for table in (boxes, objects))
        places = _of_places(_relative(boxes, sizes), _relative(objects, of_objects))
        for text in (places or _of_units(boxes, sizes, "boxes"), _of_units(objects, of_objects, "objects")):
            if text:
                yield Finding("places", f"data set {info.name!r}: {text}")
        if info.role is Role.ID and class_names and (text := _of_classes(boxes, objects, class_names)):
            yield Finding("box_classes", f"data set {info.name!r}: {text}")


def _relative(table: pd.DataFrame, sizes: Int[np.ndarray, "boxes 2"]) -> Float[np.ndarray, "known 4"]:
    """Corners as fractions of the sides of the image, for images of known size."""
    known = (sizes > 0).all(axis=1)
    return np.asarray(table[CORNERS].to_numpy(dtype=np.float64)[known] / np.tile(sizes[known], 2))


def _of_places(boxes: Float[np.ndarray, "boxes 4"], objects: Float[np.ndarray, "objects 4"]) -> str:
    leave = int(((boxes < -MARGIN) | (boxes > 1 + MARGIN)).any(axis=1).sum())
    if len(boxes) >= FEW[0] and leave >= OUTSIDE * len(boxes):
        return (
            f"{leave} of {len(boxes)} boxes reach beyond their image by more than {MARGIN:.0%} of its side; they may be"
            " (xmin, ymin, xmax, ymax) where (x, y, width, height) is expected, or in pixels of a larger image"
        )
    if len(boxes) >= FEW[1] and len(objects) and boxes.max() < PART and objects.max() > WHOLE:
        return (
            f"all {len(boxes)} boxes lie in the upper left {boxes.max():.0%} of their image, but the annotated objects"
            " do not; the boxes may be percentages, or in pixels of a smaller image"
        )
    return ""


def _of_units(table: pd.DataFrame, sizes: Int[np.ndarray, "boxes 2"], what: str) -> str:
    """Boxes in percent of their image, or some that are relative to it among others in pixels."""
    boxes = table[CORNERS].to_numpy(dtype=np.float64)
    relative = are_relative(boxes, sizes) & (boxes % 1 != 0).any(axis=1)
    least = 1 if what == "objects" else max(FEW_RELATIVE[0], FEW_RELATIVE[1] * len(boxes))
    if (count := int(relative.sum())) >= least:
        row = int(relative.argmax())
        example = f"{boxes[row].tolist()} in an image of {sizes[row][0]} x {sizes[row][1]}"
        return f"{count} of {len(boxes)} {what} seem to be fractions of width and height, not pixels: {example}"
    large = boxes[(sizes >= LARGE).all(axis=1)]
    if len(large) >= FEW[0] and 50 < large.max() <= 100.5 and large.min() >= 0:
        where = f"in images of at least {LARGE} x {LARGE} pixels are at most {large.max():.4g}"
        return f"all coordinates of the {len(large)} {what} {where}; they may be percentages of width and height"
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
    off = f"{abs(step)} {'higher' if step > 0 else 'lower'} than that of the object"
    shifted = f", and {counts.max()} have a class index that is {off}" if share > 0.5 else ""
    return (
        f"of {len(steps)} boxes that hit an object, only {int((steps == 0).sum())} have the object's class{shifted}."
        " Check whether category ids start at 0 or 1, and whether class_names are in the order of the logits"
    )
