"""One rank of `test_metrics.py`."""

import json
import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from oodlit import objects as o

METRICS = {
    "UnknownAP": o.UnknownAP,
    "UnknownPrecision": o.UnknownPrecision,
    "UnknownRecall": o.UnknownRecall,
    "NOSE": o.NOSE,
    "NOSEBoxes": o.NOSEBoxes,
    "Dismissed": o.Dismissed,
    "AOSE": o.AOSE,
}
CUTS = {"uneven": ([0, 1, 2, 3, 4], [5]), "empty": ([], list(range(6))), "one each": ([0, 2, 4], [1, 3, 5])}
CLASSES = 2


def image(number):
    """Boxes and objects of one of six images; the fourth has neither, the fifth no box."""
    made = np.random.default_rng(number)
    n_boxes, n_objects = {3: (0, 0), 4: (0, 2)}.get(number, (7, 3))
    return {
        "confidence": torch.from_numpy(made.integers(1, 9, n_boxes) / 8),
        "scores": torch.from_numpy(made.integers(-4, 4, n_boxes).astype(float)),
        "objects": torch.from_numpy(made.integers(-1, max(n_objects, 1), n_boxes)),
        "overlaps": torch.from_numpy(made.integers(2, 9, n_boxes) / 8),
        "n_objects": n_objects,
        "id_scores": torch.from_numpy(made.integers(-3, 9, 5).astype(float)),
        "classes": torch.from_numpy(made.integers(0, CLASSES, n_boxes)),
        "object_classes": torch.from_numpy(made.integers(0, CLASSES, n_objects)),
    }


def values(images, *, tau=None):
    """Value of every metric over the given images, one at a time."""
    made = {name: kind(tau, tpr=0.8) for name, kind in METRICS.items()}
    wilderness = o.WildernessImpact(CLASSES, recall=0.25)
    for number in images:
        found = image(number)
        names = ("confidence", "scores", "objects", "overlaps")
        for metric in made.values():
            metric.update(*(found[name] for name in names), n_objects=found["n_objects"])
            metric.update_id(found["id_scores"])
        on_unknown = found["objects"] == 0
        known = torch.where(on_unknown, -1, found["objects"])
        wilderness.update(
            found["confidence"], found["classes"], known, on_unknown, object_classes=found["object_classes"]
        )
    return {name: metric.compute().item() for name, metric in made.items()} | {"wi": wilderness.compute().item()}


def main(folder: Path) -> None:
    rank, meet = int(os.environ["RANK"]), f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    found = {name: values(cut[rank]) for name, cut in CUTS.items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
