"""Runs over boxes on the tiny benchmark of layout.py."""

import warnings
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from oodlit.cli.demos.network import small_faster_rcnn
from oodlit.detectors import Detector
from oodlit.detectors.contract.every import every_detector
from oodlit.objects import ObjectBenchmark, ObjectDetection, ObjectModule, ObjectResults, ObjectSettings
from tests.objects.layout import BDD, VOC, write_fmiyc

SETTINGS = ObjectSettings(t_star=0.2, bootstrap=0)
"""Fresh weights give every class of a box a confidence of about 1/4."""


def write(folder: Path, known: str = "voc", **options: Any) -> Path:
    write_fmiyc(folder / "fmiyc", folder / known, known=VOC if known == "voc" else BDD, **options)
    return folder


def benchmark(folder: Path, known: str = "voc", **options: Any) -> ObjectBenchmark:
    return ObjectBenchmark.fmiyc(folder / "fmiyc", known, known_root=folder / known, **options)


def make_module(num_classes: int = 3, **options: Any) -> ObjectModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = small_faster_rcnn(num_classes)
        torch.nn.init.normal_(network.roi_heads.box_predictor.cls_score.weight, std=0.3)
    return ObjectModule(network, **{"min_confidence": 0.1} | options)


def make_trainer(*callbacks: Any, **options: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return Trainer(callbacks=list(callbacks), **quiet | {"devices": 1} | options)


def many_detectors() -> dict[str, Detector]:
    return every_detector({"knn": {"k": 3}})[0]


def predict(detectors: Any, data: ObjectBenchmark, module: ObjectModule | None = None, **options: Any) -> ObjectResults:
    detection = ObjectDetection(detectors, **{"settings": SETTINGS} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer(detection).predict(module or make_module(), data, return_predictions=False)
    assert detection.results is not None
    assert detection.plan is None
    return detection.results
