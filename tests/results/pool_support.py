"""A small run with a pool: two detectors, three known classes, 24 classes of which later ones are harder."""

import numpy as np
import pandas as pd

from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

WNIDS = tuple(f"n{90000000 + i} thing {i}" for i in range(24))
DETECTORS = {"msp": "exp(score)", "good": "score"}


def pool_results(
    seed: int = 0,
    *,
    id_classes: int = 3,
    names: tuple[str, ...] = tuple(f"kind {i}" for i in range(24)),
    per_class: int = 8,
    n_id: int = 200,
    run: dict | None = None,
) -> Results:
    """Results of a pool; classes of a higher number look more like ID."""
    generator = np.random.default_rng(seed)
    K = len(names)
    hardness = np.linspace(-2, 0.2, K) + 0.2 * generator.normal(size=K)
    group = np.repeat(np.arange(K), per_class)
    scores = pd.DataFrame(
        {
            "key": [f"val/{i:04d}" for i in range(n_id)] + [f"pool/test/{g}/{i:05d}" for i, g in enumerate(group)],
            "dataset": ["val"] * n_id + ["pool"] * len(group),
            "group": [-1] * n_id + group.tolist(),
            "label": [i % 3 for i in range(n_id)] + [-1] * len(group),
            "prediction": [(i + i // 10 % 2) % 3 for i in range(n_id)] + (group % 3).tolist(),
        }
    )
    estimates = []
    for name, kind in DETECTORS.items():
        noise = generator.normal(size=len(scores))
        values = np.concatenate([np.full(n_id, 1.0), hardness[group]]) + noise
        scores[name] = (-np.exp(-values) if name == "msp" else values).astype(np.float32)
        severity = np.exp(-np.exp(-hardness)) if name == "msp" else hardness
        estimates.append(
            pd.DataFrame(
                {
                    "dataset": "pool",
                    "ood_class": list(names),
                    "detector": name,
                    "confidence": kind,
                    "severity": severity,
                    "standard_error": 0.01,
                    "n_estimation": 24,
                    "digest": np.arange(K) + 7,
                }
            )
        )
    infos = [
        DatasetInfo("val", Role.ID, ("zero", "one", "two")),
        DatasetInfo("pool", Role.POOL, names, id_classes=id_classes, split="as packed"),
    ]
    settings = {
        "msp": {"class_path": "oodlit.detectors.MSP", "init_args": {}},
        "good": {"class_path": "oodlit.detectors.Energy", "init_args": {}},
    }
    described = {"backbone": {"name": f"net {seed}"}, "detector_settings": settings, **(run or {})}
    return Results.from_scores(
        scores, infos, list(DETECTORS), run=described, estimates=pd.concat(estimates, ignore_index=True), bootstrap=0
    )
