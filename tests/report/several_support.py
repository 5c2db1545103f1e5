"""Many runs of the same sets, made from arithmetic."""

import numpy as np
import pandas as pd

from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

TESTS = ("black", "white", "uni")


def make_runs(
    models: int, detectors: int, classes: int, *, n_id: int = 400, per_class: int = 4, names: tuple[str, ...] = ()
) -> dict[str, Results]:
    """Runs by name; a larger number of a model or a detector is a better one."""
    sizes = {"val": n_id, "near": classes * per_class, "far": 60, "tests": 3 * 5}
    dataset = np.repeat(list(sizes), list(sizes.values()))
    index = np.concatenate([np.arange(n) for n in sizes.values()])
    group = np.full(len(index), -1)
    group[dataset == "near"] = index[dataset == "near"] % classes
    group[dataset == "tests"] = index[dataset == "tests"] % 3
    inside = dataset == "val"
    base = pd.DataFrame({"key": [f"{d}/{i:06d}" for d, i in zip(dataset, index, strict=True)], "dataset": dataset})
    base["group"], base["label"] = group, np.where(inside, index % 10, -1)
    infos = [
        DatasetInfo("val", Role.ID),
        DatasetInfo("near", Role.OOD, tuple(f"class {i}" for i in range(classes))),
        DatasetInfo("far", Role.OOD),
        DatasetInfo("tests", Role.UNIT_TEST, TESTS),
    ]
    columns = [f"detector_{i:02d}" for i in range(detectors)]
    runs = {}
    for model in range(models):
        rng = np.random.default_rng(model)
        wrong = rng.random(len(index)) < 0.3 - 0.25 * model / models
        frame = base.assign(prediction=np.where(inside & wrong, (index + 1) % 10, index % 10))
        for place, name in enumerate(columns):
            shift = np.where(inside, 1.0 + model / models + place / detectors, 0.01 * np.maximum(group, 0))
            frame[name] = (shift + rng.normal(size=len(index))).astype(np.float32)
        title = names[model] if names else f"model_{model:02d}"
        runs[title] = Results.from_scores(frame, infos, columns, bootstrap=0, run={"backbone": {"name": title}})
    return runs
