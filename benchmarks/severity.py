"""Levels of severity of a pool as large as ImageNet-21k, with synthetic scores: time per detector, and peak memory.

11 000 classes of 150 estimation and 50 test images, 50 000 ID images of 1000 classes, 8 detectors:

    OMP_NUM_THREADS=2 python benchmarks/severity.py
    python benchmarks/severity.py --classes 1100 --detectors 2    # a trial

Seconds are those of all cores together, so that other work on the machine does not count. Three steps are timed: the
sums over estimation images, in batches as in a run (once for all detectors); the pure functions (levels, all windows,
intervals); and `Results.from_scores`, from per-image scores to the table.
"""

import argparse
import platform
import resource
import time

import numpy as np
import pandas as pd
import torch

from oodlit.metrics import auroc
from oodlit.metrics.severity.level_intervals import level_intervals
from oodlit.metrics.severity.severity_curves import severity_levels
from oodlit.results import DatasetInfo, Results
from oodlit.results.files.class_sums import ClassSums, estimates
from oodlit.roles import Role

N_ID, ID_CLASSES, ESTIMATION, TEST = 50_000, 1000, 150, 50


def peak_mb() -> float:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Make scores, time the steps, check one level against the pooled AUROC."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=11_000)
    parser.add_argument("--detectors", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    num_classes, names = options.classes, [f"d{i}" for i in range(options.detectors)]
    id_classes = min(ID_CLASSES, num_classes // 11)
    rng = np.random.default_rng(0)
    hardness = rng.normal(-1, 0.7, (len(names), num_classes))
    id_scores = rng.normal(0, 1, (len(names), N_ID)).astype(np.float32)
    groups = np.repeat(np.arange(num_classes), TEST)
    scores = (hardness[:, groups] + rng.normal(0, 1, (len(names), len(groups)))).astype(np.float32)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{num_classes} classes, {len(groups)} test images, {N_ID} ID images, {len(names)} detectors")
    print(f"scores made: peak {peak_mb():.0f} MB")

    sums = ClassSums(names, num_classes)
    order = rng.permutation(np.repeat(np.arange(num_classes), ESTIMATION))
    spent = 0.0
    for start in range(0, len(order), options.batch_size):
        batch = order[start : start + options.batch_size]
        values = torch.from_numpy(1 / (1 + np.exp(-hardness[:, batch] - rng.normal(0, 1, (len(names), len(batch))))))
        begin = time.process_time()
        sums.add(torch.from_numpy(batch), dict(zip(names, values, strict=True)))
        spent += time.process_time() - begin
    print(f"sums of {len(order)} estimation images: {spent / len(names):.2f} s per detector, peak {peak_mb():.0f} MB")
    info = DatasetInfo("pool", Role.POOL, tuple(map(str, range(num_classes))), id_classes=id_classes)
    begin = time.process_time()
    severities = estimates([sums.frame(detectors=names)], info, names, dict.fromkeys(names, "score"))
    print(f"severities: {(time.process_time() - begin) / len(names):.2f} s per detector, peak {peak_mb():.0f} MB")

    begin = time.process_time()
    for i, name in enumerate(names):
        own = severities.loc[severities["detector"] == name, "severity"].to_numpy()
        found = severity_levels(id_scores[i], scores[i], torch.from_numpy(groups), own, id_classes=id_classes)
        for values in (found.classes.auroc, found.classes.fpr):
            level_intervals(values, found.classes.sizes, found.order, found.starts.tolist(), found.width)
    print(f"levels and windows: {(time.process_time() - begin) / len(names):.2f} s per detector")
    last = found.members(10).numpy()
    assert float(found.auroc[10]) == auroc(id_scores[-1], scores[-1][np.isin(groups, last)])

    keys = [f"val/{i:05d}" for i in range(N_ID)] + [f"pool/{i:06d}" for i in range(len(groups))]
    n, m = N_ID, len(groups)
    columns = {
        "key": keys,
        "dataset": ["val"] * n + ["pool"] * m,
        "group": np.r_[np.full(n, -1), groups],
        "label": np.r_[np.arange(n) % id_classes, np.full(m, -1)],
        "prediction": np.r_[np.arange(n) * (np.arange(n) % 5 > 0) % id_classes, np.zeros(m, dtype=int)],
    }
    frame = pd.DataFrame(columns | {name: np.r_[id_scores[i], scores[i]] for i, name in enumerate(names)})
    before = peak_mb()
    begin = time.process_time()
    results = Results.from_scores(frame, [DatasetInfo("val", Role.ID), info], names, estimates=severities, bootstrap=0)
    spent = time.process_time() - begin
    print(f"Results.from_scores: {spent / len(names):.2f} s per detector, peak {before:.0f} -> {peak_mb():.0f} MB")
    begin = time.process_time()
    table = results.severities("pool", names[0])
    print(f"Results.severities of one detector: {time.process_time() - begin:.2f} s, {len(table)} rows")


if __name__ == "__main__":
    main()
