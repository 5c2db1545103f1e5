"""Results of any size, made from arithmetic rather than from a network."""

import numpy as np
import pandas as pd
from PIL import Image

from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

TESTS = ("black", "white", "uni")


def make_results(
    detectors: tuple[str, ...] = ("msp", "knn"),
    classes: tuple[str, ...] = ("seven", "eight", "nine"),
    *,
    labels: tuple[str, ...] = ("zero", "one"),
    per_class: int = 20,
    bootstrap: int = 20,
    run: dict[str, object] | None = None,
) -> Results:
    """ID, near OOD with classes, far OOD without, unit tests and a shift; OOD class i is easier than class i + 1."""
    rows = [(f"val/{i:03d}", "val", -1, i % 2, (i % 2) if i % 10 else 1 - i % 2) for i in range(100)]
    for group in range(len(classes)):
        rows += [(f"near/{group}-{i:03d}", "near", group, -1, i % 2) for i in range(per_class)]
    rows += [(f"far/{i:03d}", "far", -1, -1, 0) for i in range(30)]
    rows += [(f"tests/{g}-{i}", "tests", g, -1, 1) for g in range(len(TESTS)) for i in range(10)]
    rows += [(f"noisy/{i:03d}", "noisy", i % 2, i % 2, 0) for i in range(20)]
    frame = pd.DataFrame(rows, columns=["key", "dataset", "group", "label", "prediction"])
    rng = np.random.default_rng(0)
    shift = frame["dataset"].map({"val": 2.0, "near": 0.0, "far": -1.0, "tests": -2.0, "noisy": 1.0}).to_numpy()
    shift = shift + np.where(frame["dataset"] == "near", 0.8 * frame["group"] / max(len(classes), 1), 0.0)
    shift = shift + np.where((frame["dataset"] == "tests") & (frame["group"] == 1), 6.0, 0.0)
    for index, name in enumerate(detectors):
        frame[name] = (shift * (1 + index) + rng.normal(0, 1, len(frame))).astype(np.float32)
    datasets = [
        DatasetInfo("val", Role.ID, labels),
        DatasetInfo("near", Role.OOD, classes),
        DatasetInfo("far", Role.OOD),
        DatasetInfo("tests", Role.UNIT_TEST, TESTS),
        DatasetInfo("noisy", Role.SHIFT, ("rain", "snow")),
    ]
    return Results.from_scores(frame, datasets, detectors, bootstrap=bootstrap, run=run)


def read_images(keys: list[str]) -> dict[str, Image.Image]:
    """A picture for every key: small ones for unit tests, large ones for others."""
    return {
        key: Image.new("RGB", (8, 8), (0, 0, 0))
        if key.startswith("tests/")
        else Image.fromarray(np.random.default_rng(index).integers(0, 255, (150, 200, 3), dtype=np.uint8))
        for index, key in enumerate(keys)
    }
