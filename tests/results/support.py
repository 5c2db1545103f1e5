"""A small run with every role: two detectors, labels, two OOD sets, shifted images, unit tests."""

import numpy as np
import pandas as pd

from oodlit.results import DatasetInfo
from oodlit.roles import Role

DETECTORS = ["good", "poor"]
DATASETS = [
    DatasetInfo("train", Role.TRAIN),
    DatasetInfo("val", Role.ID, ("zero", "one", "two")),
    DatasetInfo("near", Role.OOD, ("high heels", "cup: cakes", "sky")),
    DatasetInfo("far", Role.OOD),
    DatasetInfo("shifted", Role.SHIFT, ("fog", "snow")),
    DatasetInfo("tests", Role.UNIT_TEST, ("black", "white")),
]
SIZES = {"train": 200, "val": 300, "near": 90, "far": 40, "shifted": 60, "tests": 40}
SHIFT_OF = {"train": 2.2, "val": 2.0, "near": 0.3, "far": -0.5, "shifted": 1.4, "tests": -0.4}


def run_scores(seed=0):
    """The per-image table, in random order; images have the labels of seed 0, whatever the seed."""
    generator = np.random.default_rng(seed)
    known = run_scores(0).set_index("key")["label"] if seed else None
    blocks = []
    for info in DATASETS:
        n = SIZES[info.name]
        labelled = info.role in (Role.TRAIN, Role.ID, Role.SHIFT)
        grouped = info.class_names and info.role not in (Role.ID, Role.TRAIN)
        label = generator.integers(0, 3, n) if labelled else np.full(n, -1)
        if known is not None:
            label = known[[f"{info.name}/{i:04d}" for i in range(n)]].to_numpy()
        wrong = generator.random(n) < 0.15
        block = {
            "key": [f"{info.name}/{i:04d}" for i in range(n)],
            "dataset": info.name,
            "group": np.arange(n) % len(info.class_names) if grouped else np.full(n, -1),
            "label": label,
            "prediction": np.where(wrong, (label + 1) % 3, label) if labelled else generator.integers(0, 3, n),
        }
        for name, quality in zip(DETECTORS, (1.5, 0.6), strict=True):
            noise = generator.normal(size=n)
            block[name] = (noise + quality * (SHIFT_OF[info.name] - 0.5 * wrong * labelled)).astype(np.float32)
        blocks.append(pd.DataFrame(block))
    return pd.concat(blocks, ignore_index=True).sample(frac=1, random_state=seed, ignore_index=True)
