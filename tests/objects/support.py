"""Random scenes with ties and exact overlaps, and slow, readable references for the metrics of boxes."""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from oodlit.objects import Annotations
from oodlit.objects.files.annotations import parse_annotations
from oodlit.objects.metrics import MatchedBoxes, Objects, best_overlaps


@dataclass
class Box:
    image: int
    corners: tuple[int, int, int, int]
    confidence: float
    score: float
    label: int = 0


@dataclass
class Plain:
    """A scene as plain Python: boxes, and objects as (image, corners, class)."""

    boxes: list[Box] = field(default_factory=list)
    objects: list[tuple[int, tuple[int, int, int, int], int]] = field(default_factory=list)
    n_images: int = 1


CONFIDENCES = [0.1, 0.25, 0.5, 0.5, 0.75, 0.9]
SCORES = [-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]


@st.composite
def corners(draw, *, side=8):
    """A box on a grid, so that equal overlaps and an overlap of exactly one half are frequent."""
    x, y = draw(st.integers(0, side - 1)), draw(st.integers(0, side - 1))
    return (x, y, draw(st.integers(x + 1, side)), draw(st.integers(y + 1, side)))


@st.composite
def scenes(draw, *, max_boxes=12, max_objects=6, max_images=3, classes=2, min_objects=0, min_boxes=0):
    n_images = draw(st.integers(1, max_images))
    image, label = st.integers(0, n_images - 1), st.integers(0, classes - 1)
    objects = draw(st.lists(st.tuples(image, corners(), label), min_size=min_objects, max_size=max_objects))
    shown = [found for found in objects for _ in range(2)]  # half of the boxes lie on an object
    box = st.builds(Box, image, corners(), st.sampled_from(CONFIDENCES), st.sampled_from(SCORES), label)
    boxes = draw(st.lists(box, min_size=min_boxes, max_size=max_boxes))
    for position, found in enumerate(boxes):
        if shown and position % 2:
            found.image, found.corners, _ = shown[position % len(shown)]
    return Plain(boxes, objects, n_images)


def matched(scene: Plain) -> MatchedBoxes:
    """The scene as the metrics take it."""
    best = best_overlaps(*arrays(scene))
    return MatchedBoxes(
        np.array([b.confidence for b in scene.boxes], dtype=float),
        np.array([b.score for b in scene.boxes], dtype=float),
        best.objects,
        best.overlaps,
        len(scene.objects),
    )


def arrays(scene: Plain):
    """Boxes, their images, and the objects."""
    return (
        np.array([b.corners for b in scene.boxes], dtype=float).reshape(-1, 4),
        np.array([b.image for b in scene.boxes], dtype=np.int64),
        objects_of(scene),
    )


def objects_of(scene: Plain) -> Objects:
    return Objects(
        np.array([c for _, c, _ in scene.objects], dtype=float).reshape(-1, 4),
        np.array([i for i, _, _ in scene.objects], dtype=np.int64),
        np.array([k for _, _, k in scene.objects], dtype=np.int64),
    )


def reference_iou(a, b, extent=0):
    """Of two boxes, as a fraction."""
    a, b = [Fraction(v) for v in a], [Fraction(v) for v in b]
    width, height = min(a[2], b[2]) - max(a[0], b[0]) + extent, min(a[3], b[3]) - max(a[1], b[1]) + extent
    inner = max(width, 0) * max(height, 0)
    area = sum((c[2] - c[0] + extent) * (c[3] - c[1] + extent) for c in (a, b))
    return inner / (area - inner) if area > inner else Fraction(0)


def reference_best(box: Box, objects):
    """(number, overlap) of the object that a box overlaps most; of equal ones that with the smallest corners."""
    near = [(-reference_iou(box.corners, c), c, n) for n, (image, c, _) in enumerate(objects) if image == box.image]
    overlap, _, number = min(near, default=(Fraction(0), None, None))
    return (number, -overlap) if overlap < 0 else (None, Fraction(0))


def reference_open_set(scene: Plain, tau: float, iou=Fraction(1, 2)):
    """All metrics of `open_set`, by loops; None where there is none."""
    best = [reference_best(box, scene.objects) for box in scene.boxes]
    unknown = sorted((i for i, b in enumerate(scene.boxes) if b.score < tau), key=lambda i: -scene.boxes[i].confidence)
    taken, true = set(), []
    for i in unknown:
        number, overlap = best[i]
        hit = number is not None and overlap >= iou and number not in taken
        true.append(hit)
        if hit:
            taken.add(number)
    called_id = [best[i] for i, b in enumerate(scene.boxes) if not b.score < tau]
    errors = [number for number, overlap in called_id if number is not None and overlap >= iou]
    n = len(scene.objects)
    curve = []
    for cut in sorted({scene.boxes[i].confidence for i in unknown}, reverse=True):
        among = [hit for i, hit in zip(unknown, true, strict=True) if scene.boxes[i].confidence >= cut]
        curve.append((sum(among), len(among)))
    area, before = Fraction(0), 0
    for position, (found, _) in enumerate(curve):
        area += (found - before) * max(Fraction(*point) for point in curve[position:])
        before = found
    wrong = set(errors) - taken
    return {
        "p_u": Fraction(sum(true), len(true)) if true else None,
        "r_u": Fraction(sum(true), n) if n else None,
        "ap_u": area / n if n else None,
        "nose": Fraction(len(wrong), n) if n else None,
        "nose_boxes": Fraction(len(errors), n) if n else None,
        "dismissed": Fraction(n - len(wrong) - len(taken), n) if n else None,
        "aose": len(wrong),
    }


def annotations_of(dataset: str, objects, *, classes=("thing",), labels=None, side=200) -> Annotations:
    """Annotations of objects by the key of their image, in the order given."""
    coco = {"images": [], "annotations": [], "categories": [{"id": n, "name": c} for n, c in enumerate(classes)]}
    for key, found in objects.items():
        identity = key.partition("/")[2]
        coco["images"].append({"id": identity, "width": side, "height": side})
        for place, (x0, y0, x1, y1) in enumerate(found):
            label = 0 if labels is None else labels[key][place]
            entry = {"id": len(coco["annotations"]), "image_id": identity, "category_id": label}
            coco["annotations"].append(entry | {"bbox": [x0, y0, x1 - x0, y1 - y0]})
    return parse_annotations(coco, dataset, Path("made.json"))
