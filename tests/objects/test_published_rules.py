"""`rules="published"` against a slow transcription of the arithmetic of FMIYC's program; see docs/objects.md."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodlit.objects import Detections, ObjectResults, ObjectSet, ObjectSettings
from oodlit.results import DatasetInfo
from oodlit.roles import Role

from .support import annotations_of


def transcription(boxes, objects, id_scores, t_star):
    """P_U, R_U, AP_U and the count of boxes for AOSE, line by line.

    `boxes`: (key of the image, corners, confidence, score) in the order of the files; `objects`: corners by image.
    """
    mean = sum(id_scores) / len(id_scores)
    tau = mean - 1.645 * math.sqrt(sum((s - mean) ** 2 for s in id_scores) / len(id_scores))
    lines = []
    for key, (x0, y0, x1, y1), confidence, score in boxes:
        if confidence < t_star:
            continue
        # Written to a text file, one line per box, pixels counted from 1.
        text = f"{key} {confidence:.3f} {x0 + 1:.1f} {y0 + 1:.1f} {x1:.1f} {y1:.1f}"
        lines.append((text.split(" "), score < tau))
    total = sum(len(found) for found in objects.values())
    taken = {key: [False] * len(found) for key, found in objects.items()}

    def best(words):
        corners = [float(word) for word in words[2:]]
        overlap, place = -math.inf, None
        for number, other in enumerate(objects[words[0]]):
            width = max(min(corners[2], other[2]) - max(corners[0], other[0]) + 1.0, 0.0)
            height = max(min(corners[3], other[3]) - max(corners[1], other[1]) + 1.0, 0.0)
            inner = width * height
            areas = [(c[2] - c[0] + 1.0) * (c[3] - c[1] + 1.0) for c in (corners, other)]
            if inner / (areas[0] + areas[1] - inner) > overlap:
                overlap, place = inner / (areas[0] + areas[1] - inner), number
        return overlap, place

    unknown = [words for words, is_unknown in lines if is_unknown and objects.get(words[0])]
    unknown.sort(key=lambda words: -float(words[1]))
    true = []
    for words in unknown:
        overlap, place = best(words)
        hit = overlap > 0.5 and not taken[words[0]][place]
        if hit:
            taken[words[0]][place] = True
        true.append(hit)
    known = [words for words, is_unknown in lines if not is_unknown and objects.get(words[0])]
    errors = sum(best(words)[0] > 0.5 for words in known)
    recall = [sum(true[: n + 1]) / total for n in range(len(true))]
    precision = [sum(true[: n + 1]) / (n + 1) for n in range(len(true))]
    # All-point average precision with a monotone envelope.
    mrec, mpre = [0.0, *recall, 1.0], [0.0, *precision, 0.0]
    for n in range(len(mpre) - 2, -1, -1):
        mpre[n] = max(mpre[n], mpre[n + 1])
    area = sum((mrec[n + 1] - mrec[n]) * mpre[n + 1] for n in range(len(mrec) - 1))
    return {
        "p_u": precision[-1] if precision else 0.0,
        "r_u": recall[-1] if recall else 0.0,
        "ap_u": area,
        "nose_boxes": errors / total,
        "tau": tau,
    }


@st.composite
def splits(draw):
    """Small boxes, 10 to 40 pixels, near their objects, of three images, the last without objects."""
    made = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    objects = {}
    for number in range(3):
        corner = made.uniform(0, 60, (0 if number == 2 else 3, 2))
        objects[f"near/{number}"] = np.concatenate([corner, corner + made.uniform(10, 40, corner.shape)], axis=1).round(
            2
        )
    boxes = []
    for key, found in objects.items():
        for _ in range(draw(st.integers(0, 8))):
            base = found[made.integers(len(found))] if len(found) else np.array([5.0, 5.0, 30.0, 30.0])
            corners = base + made.normal(0, 4, 4)
            corners[2:] = np.maximum(corners[2:], corners[:2] + 1)
            boxes.append((key, corners.tolist(), float(made.uniform()), float(made.normal())))
    return boxes, {key: found.tolist() for key, found in objects.items()}, made.normal(0.5, 1, 20).tolist()


def results(boxes, objects, id_scores, **changes) -> ObjectResults:
    def detections(rows, keys):
        return Detections(
            torch.tensor([corners for _, corners, _, _ in rows], dtype=torch.float64).reshape(-1, 4),
            torch.tensor([confidence for _, _, confidence, _ in rows], dtype=torch.float64),
            torch.tensor([keys.index(key) for key, *_ in rows], dtype=torch.int64),
            keys,
        )

    inside = [("val/0", [0.0, 0.0, 5.0, 5.0], 1.0, score) for score in id_scores]
    keys = list(objects)
    sets = [
        ObjectSet(DatasetInfo(name, role), detections(rows, of), found, {"g": np.array([score for *_, score in rows])})
        for name, role, rows, of, found in (
            ("val", Role.ID, inside, ["val/0"], None),
            ("near", Role.OOD, boxes, keys, annotations_of("near", objects)),
        )
    ]
    return ObjectResults.from_sets(sets, settings=ObjectSettings(bootstrap=0, t_star=0.3, **changes))


@settings(max_examples=60)
@given(splits())
def test_published_rules_are_those_of_the_transcription(split) -> None:
    boxes, objects, id_scores = split
    expected = transcription(boxes, objects, id_scores, 0.3)
    found = results(boxes, objects, id_scores, rules="published")
    assert found.threshold("g") == pytest.approx(expected.pop("tau"), abs=1e-12)
    told = {name: found.value(name, dataset="near", detector="g") for name in expected}
    assert told == pytest.approx(expected, abs=1e-12)


def test_what_the_rules_change() -> None:
    objects = {"near/0": [[0.0, 0.0, 10.0, 10.0]], "near/1": []}
    boxes = [("near/0", [0.0, 0.0, 10.0, 5.0], 0.9, -1.0), ("near/1", [0.0, 0.0, 9.0, 9.0], 0.8, -1.0)]
    exact = results(boxes, objects, [0.0, 0.0], tau=0.0)
    published = exact.recompute(rules="published")
    # An overlap of exactly .5 hits; with a pixel added to both it is larger, but the box is moved by one.
    assert exact.value("r_u", dataset="near", detector="g") == 1
    assert published.value("r_u", dataset="near", detector="g") == 0
    # The box on the image without objects counts as a false positive, or is ignored.
    assert exact.value("p_u", dataset="near", detector="g") == 0.5
    assert len(published.table) == len(exact.table)
    assert published.table["rules"].unique().tolist() == ["", "published"]
    none = published.recompute(tau=-5.0)
    assert none.value("p_u", dataset="near", detector="g") == 0  # as printed; exact rules give NaN
    assert math.isnan(exact.recompute(tau=-5.0).value("p_u", dataset="near", detector="g"))
