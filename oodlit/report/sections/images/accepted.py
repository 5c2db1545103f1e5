"""Images sorted by score, with a threshold that the reader moves."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from oodlit.base.roles import Role
from oodlit.base.text.readable import readable
from oodlit.metrics import acceptance_threshold
from oodlit.report.detector_choice import choose
from oodlit.report.headline import percent_text, share_text
from oodlit.report.section import Section, Shown
from oodlit.results import DatasetInfo
from oodlit.results.views.sampled_images import sampled_images

SHARES = [*(step / 100 for step in range(1, 100)), 0.995, 1.0]
"""Shares of ID images that the slider can keep, besides that of the run."""


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section, if there are OOD sets and ID images."""
    rows = {info.name: shown.results.images(info.name) for info in [*shown.sets(Role.OOD), shown.inside]}
    if shown.sets(Role.OOD) and shown.detectors and len(rows[shown.inside.name]):
        yield Section("accepted", "Look at images", "images", "accepted.html", _content(shown, rows))


def _content(shown: Shown, rows: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    keys = sampled_images(shown.results)
    with_pictures = {name: [key for key in own if shown.thumbnails.classes(key)] for name, own in keys.items()}
    has_pictures = any(with_pictures.values())
    samples = {
        name: rows[name].set_index("key").loc[own] for name, own in (with_pictures if has_pictures else keys).items()
    }
    sets = [
        {"name": name, "n": len(rows[name]), "images": _images(shown, shown.results.dataset(name), sample)}
        for name, sample in samples.items()
    ]
    shares = sorted({*SHARES, float(shown.results.settings.tpr)})
    detectors = [_detector(shown, name, shares, rows, samples) for name in shown.detectors]
    choice = choose(shown)
    start = shown.detectors.index(choice.detector) if choice else 0
    step = shares.index(float(shown.results.settings.tpr))
    data = {"sets": sets, "shares": [share_text(share) for share in shares], "detectors": detectors}
    return {
        "data": json.dumps(data, separators=(",", ":")),
        "sets": sets,
        "start": start,
        "step": step,
        "steps": len(shares),
        "has_pictures": has_pictures,
        "num_train": shown.features.num_train if shown.features.nearest else 0,
        "first": _first(shown.detectors[start], sets, detectors[start], step),
    }


def _images(shown: Shown, info: DatasetInfo, sample: pd.DataFrame) -> list[list[Any]]:
    """For every image: its class, the predicted class, CSS classes of its picture, its path, and its neighbors."""
    names, inside = info.class_names, shown.inside
    group = "label" if info.role is Role.ID else "group"
    return [
        [
            names[own] if 0 <= own < len(names) else info.name,
            _class_name(inside, prediction),
            shown.thumbnails.classes(key),
            readable(key),
            [
                [
                    _class_name(inside, near.label),
                    shown.thumbnails.classes(near.key),
                    f"{readable(near.key)}, distance {near.distance:.3g}",
                ]
                for near in shown.features.nearest.get(key, ())
            ],
        ]
        for key, own, prediction in zip(
            sample.index, sample[group].tolist(), sample["prediction"].tolist(), strict=True
        )
    ]


def _detector(
    shown: Shown,
    name: str,
    shares: Sequence[float],
    rows: Mapping[str, pd.DataFrame],
    samples: Mapping[str, pd.DataFrame],
) -> dict[str, Any]:
    """Thresholds and numbers of accepted images by step of the slider, and images sorted by score with their steps."""
    rule = shown.results.settings.rule
    thresholds = np.array([acceptance_threshold(shown.id_scores[name], tpr=share, rule=rule) for share in shares])
    accepted, order, steps = [], [], []
    for dataset, sample in samples.items():
        scores = np.sort(rows[dataset][name].to_numpy(dtype=float))
        accepted.append((len(scores) - np.searchsorted(scores, thresholds, side="left")).tolist())
        own = sample[name].to_numpy(dtype=float)
        order.append(np.argsort(-own, kind="stable").tolist())
        steps.append(np.searchsorted(-thresholds, -own, side="left")[order[-1]].tolist())
    values = [float(f"{value:.5g}") if math.isfinite(value) else None for value in thresholds.tolist()]
    return {"thresholds": values, "accepted": accepted, "order": order, "steps": steps}


def _first(name: str, sets: Sequence[Mapping[str, Any]], own: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Initial content of the page: the first set at the threshold of the run."""
    images = [sets[0]["images"][place] for place in own["order"][0]]
    number = own["accepted"][0][step]
    share = percent_text(number / max(sets[0]["n"], 1))
    return {
        "text": f"{name} accepts {number} of {sets[0]['n']} images of {sets[0]['name']} (FPR {share}).",
        "images": list(zip(images, [first <= step for first in own["steps"][0]], strict=True)),
    }


def _class_name(inside: DatasetInfo, index: int) -> str:
    return "" if index < 0 else inside.class_names[index] if index < len(inside.class_names) else f"class {index}"
