"""A service in a process of its own: a gate for every detector of a run, over every image, beside the run's scores.

Called with the folder of the run, the folder of the shards, a file of weights, a folder for exported programs, and
the names of the detectors that are exported.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from oodlit import Gate, Results, Role
from oodlit.cli.demos.network import SmallNetwork
from oodlit.datamodules import DigitsBenchmark
from oodlit.datamodules.benchmarks.digits import digits_transform
from oodlit.errors import RequirementError

AS_ONNX = ("combined", "knn", "neg_label", "sirc")
SAVED = ("mahalanobis", "odin", "mc_dropout", "rank_feat", "lard", "knn", "combined")


def main(run: Path, shards: Path, weights: Path, programs: Path, exported: list[str]) -> None:
    network = SmallNetwork(7)
    network.load_state_dict(torch.load(weights, weights_only=True))
    results = Results.load(run)
    tested = results.scores[results.scores["dataset"] != next(i.name for i in results.datasets if i.role is Role.TRAIN)]
    keys = tested["key"].tolist()
    data = DigitsBenchmark(shards, per_test=4)
    images = data.read_images(keys)
    pictures = [images[key] for key in keys]
    tensors = torch.stack([digits_transform()(picture) for picture in pictures[::29]])
    torch.save(tensors, programs / "images.pt")
    report: dict[str, dict[str, object]] = {}
    for name in results.detectors:
        gate = Gate.load(run, detector=name, model=network)
        # In other batches than those of the run, the first ones alone: sizes and company must not matter.
        verdicts = [gate(picture, keys=[key])[0] for picture, key in zip(pictures[:5], keys, strict=False)]
        verdicts += gate(pictures[5:], keys=keys[5:])
        scores = tested[name].to_numpy(np.float64)
        expected = (scores >= results.threshold(name)).tolist()
        found = np.array([verdict.score for verdict in verdicts])
        spread = np.subtract(*np.quantile(scores, [0.9, 0.1])) or 1.0
        report[name] = {
            "images": len(verdicts),
            "apart": float(np.abs(found - scores).max() / max(spread, np.abs(scores).max() * 1e-3)),
            "flips": sum(v.accepted != e for v, e in zip(verdicts, expected, strict=True)),
            "classes": [v.class_index for v in verdicts] == tested["prediction"].tolist(),
        }
        if name in SAVED:
            gate.save(programs / f"saved-{name}")
            again = Gate.load(programs / f"saved-{name}", model=SmallNetwork(7))
            report[name]["saved"] = again(pictures[:70], keys=keys[:70]) == gate(pictures[:70], keys=keys[:70])
        if name not in exported:
            continue
        if reason := _refused(gate, programs / f"{name}.pt2"):
            report[name]["not_exported"] = reason
            continue
        if name in AS_ONNX:
            gate.export(programs / f"{name}.onnx")
        told = gate(tensors)
        report[name]["told"] = {
            "accepted": [verdict.accepted for verdict in told],
            "score": [verdict.score for verdict in told],
            "class_index": [verdict.class_index for verdict in told],
            "probability": [verdict.probability for verdict in told],
        }
    gate = Gate.load(run, detector="msp", model=network)
    gate.module.network.register_forward_pre_hook(_branch)
    report["branching"] = {"not_exported": _refused(gate, programs / "branching.pt2")}
    sys.stdout.write(json.dumps(report))


def _branch(_: nn.Module, images: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """What a network does that looks at the values of its images."""
    return images if images[0].sum() > 0 else (-images[0],)


def _refused(gate: Gate, file: Path) -> str:
    try:
        gate.export(file)
    except RequirementError as error:
        return str(error)
    return ""
