"""A run of the size of NINCO on ImageNet, made from arithmetic."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from oodlit.datamodules.sets.ninco import NINCO_CLASSES
from oodlit.detectors import KNN, ReAct, ViM
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

RESNET50 = {"model": "resnet50.a1_in1k", "img_size": 224, "crop_pct": 0.95}
SETTINGS = {detector.key(): detector_to_config(detector) for detector in (ViM(), KNN(k=1000), ReAct())}
"""Those of the authors."""


def ninco_run(
    detectors: tuple[str, ...] = ("msp", "vim", "mine"),
    *,
    n_id: int = 50_000,
    published_as: Mapping[str, object] | None = RESNET50,
    ood: Mapping[str, int] | None = None,
    **options: object,
) -> Results:
    """`n_id` ID images, NINCO's 64 classes with their sizes, and further OOD sets without classes."""
    sizes = [info.n_images for info in NINCO_CLASSES]
    blocks = [("imagenet_val", np.full(n_id, -1)), ("ninco", np.repeat(np.arange(len(sizes)), sizes))]
    blocks += [(name, np.full(n, -1)) for name, n in (ood or {}).items()]
    frames = []
    for name, group in blocks:
        label = np.arange(len(group)) % 1000 if name == "imagenet_val" else np.full(len(group), -1)
        wrong = np.arange(len(group)) % 10 < 2  # an accuracy of 80 %
        prediction = np.where(wrong, (label + 1) % 1000, label) if name == "imagenet_val" else group * 0
        keys = [f"{name}/{index:06d}" for index in range(len(group))]
        frames.append(
            pd.DataFrame({"key": keys, "dataset": name, "group": group, "label": label, "prediction": prediction})
        )
    frame = pd.concat(frames, ignore_index=True)
    rng = np.random.default_rng(0)
    for index, name in enumerate(detectors):
        quality = np.where(frame["dataset"] == "imagenet_val", 1.0 + 0.2 * index, 0.01 * frame["group"])
        frame[name] = (quality + rng.normal(size=len(frame))).astype(np.float32)
    datasets = [
        DatasetInfo("imagenet_val", Role.ID),
        DatasetInfo("ninco", Role.OOD, tuple(info.folder for info in NINCO_CLASSES)),
        *(DatasetInfo(name, Role.OOD) for name in ood or {}),
    ]
    run = {
        "backbone": {"name": "resnet50", "published_as": dict(published_as) if published_as else None},
        "detector_settings": {name: SETTINGS[name] for name in detectors if name in SETTINGS},
    }
    return Results.from_scores(frame, datasets, detectors, run=run, **{"bootstrap": 0, **options})
