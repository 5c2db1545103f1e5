"""One rank of the test in `test_processes.py`."""

import json
import os
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection

import oodlit.metrics as m
from oodlit.errors import NonFiniteScoreError

# Four uneven ways to cut 12 images over the ranks: (name, rows of rank 0, rows of rank 1, ...).
CUTS = {"uneven": ([0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]), "empty": ([], list(range(12))), "none": ([], [])}


def data():
    scores = torch.tensor([0.9, 0.1, 0.8, 0.35, 0.6, 0.4, 0.2, 0.7, 0.5, 0.35, 1.5, 0.05], dtype=torch.float64)
    return {
        "scores": scores,
        "is_ood": torch.tensor([False, True, False, False, True, False, True, False, True, True, False, True]),
        "is_correct": torch.arange(12) % 3 != 0,
        "groups": torch.arange(12) % 2,
        "is_test": torch.arange(12) > 6,
        "predictions": torch.arange(12) % 4,
        "labels": torch.arange(12) % 3,
    }


DICTIONARIES = ("MeanOverClasses", "SeverityLevels")
METRICS = {
    "AUROC": (m.AUROC, ("scores", "is_ood")),
    "FPRAtTPR": (m.FPRAtTPR, ("scores", "is_ood")),
    "FPRAtTPRError": (m.FPRAtTPRError, ("scores", "is_ood")),
    "JointAUGRC": (m.JointAUGRC, ("scores", "is_ood", "is_correct")),
    "JointCoverage": (m.JointCoverage, ("scores", "is_ood", "is_correct")),
    "JointRisk": (m.JointRisk, ("scores", "is_ood", "is_correct")),
    "AUPRSuccess": (m.AUPRSuccess, ("scores", "is_ood")),
    "AUPRError": (m.AUPRError, ("scores", "is_ood")),
    "DetectionError": (m.DetectionError, ("scores", "is_ood")),
    "DetectionErrorRate": (lambda: m.DetectionErrorRate(threshold=0.5), ("scores", "is_correct")),
    "IDAUROC": (m.IDAUROC, ("scores", "is_correct")),
    "AURC": (m.AURC, ("scores", "is_correct")),
    "AUGRC": (m.AUGRC, ("scores", "is_correct")),
    "OSCR": (m.OSCR, ("scores", "is_ood", "is_correct")),
    "Accuracy": (m.Accuracy, ("predictions", "labels")),
    "UnitTestFailures": (lambda: m.UnitTestFailures(2), ("scores", "is_ood", "groups")),
    "SeverityLevels": (lambda: m.SeverityLevels(2, id_classes=1), ("scores", "is_ood", "groups", "is_test")),
    "MeanOverClasses": (lambda: m.MeanOverClasses(m.FPRAtTPR(), 2), ("scores", "is_ood", "groups")),
}


def values(rows):
    """Value of every metric over the given rows, in batches of two; NaN as text."""
    found = {}
    for name, (make, names) in METRICS.items():
        metric = make()
        for start in range(0, len(rows), 2):
            batch = {k: v[rows[start : start + 2]] for k, v in data().items()}
            metric.update(batch[names[0]], **{k: batch[k] for k in names[1:]})
        value = metric.compute()
        again = metric.compute()
        found[name] = repr({k: v.tolist() for k, v in value.items()} if isinstance(value, dict) else value.item())
        assert str(value) == str(again)
    return found


def collected(rows):
    """The same values from one collection, whose metrics share their states."""
    groups = {"scores": ("scores", "is_ood", "is_correct", "groups"), "predictions": ("predictions", "labels")}
    found = {}
    for first, names in groups.items():
        chosen = {k: make() for k, (make, needs) in METRICS.items() if needs[0] == first and k not in DICTIONARIES}
        collection = MetricCollection(chosen)
        for start in range(0, len(rows), 2):
            batch = {k: data()[k][rows[start : start + 2]] for k in names}
            collection.update(batch[first], **{k: batch[k] for k in names[1:]})
        collection.compute()
        found |= {name: repr(value.item()) for name, value in collection.compute().items()}
    return found


def main(folder: Path) -> None:
    rank, meet = int(os.environ["RANK"]), f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    found = {}
    for name, cut in CUTS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found[name] = values(cut[rank])
            found[f"{name} collected"] = collected(cut[rank])
        found[f"{name} warnings"] = sorted({w.category.__name__ for w in caught})
    metric = m.AUROC()  # NaN on one rank: every rank raises, none waits for ever
    metric.update(torch.tensor([float("nan") if rank else 1.0]), is_ood=torch.tensor([bool(rank)]))
    try:
        metric.compute()
    except NonFiniteScoreError as error:
        found["nan"] = str(error)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    del backend  # last: torch < 2.8 would wait for gloo's threads with the interpreter's lock, for which they wait
    (folder / f"{rank}.json").write_text(json.dumps(found))
