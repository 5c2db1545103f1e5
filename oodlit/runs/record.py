"""What is written down about a run, so that its numbers can be believed and repeated."""

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

import torch

from oodlit._lightning import pl
from oodlit._version import __version__
from oodlit.backbones.backbone import Backbone
from oodlit.backbones.facts import published_as
from oodlit.backbones.recipe import recipe_of
from oodlit.backbones.transform_description import shown
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors.contract.overview import overview
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.runs.choice import Choice

Record = Callable[[], Mapping[str, Any]]
"""Gives entries of the record of a run."""

PACKAGES = ("numpy", "pandas", "pytorch-lightning", "timm", "torch", "torchmetrics", "torchvision")


def run_record(trainer: pl.Trainer, module: Backbone, datamodule: OODDataModule, choice: Choice) -> dict[str, Any]:
    """Versions, command line, backbone, data, settings: plain JSON values."""
    record = common_record(trainer, datamodule, choice)
    return record | {
        "data": record["data"] | {"train_images": choice.facts.num_train},
        "backbone": record["backbone"]
        | {
            "head": " + ".join(module.head_layers),
            "transform": shown(choice.transform),
            "transform_recipe": recipe_of(choice.transform),
            "arguments": module.arguments,
            "input_shape": list(choice.images.shape[1:]),
            "published_as": published_as(module.network, choice.transform),
        },
    }


def common_record(trainer: pl.Trainer, datamodule: OODDataModule, choice: Choice) -> dict[str, Any]:
    """What is written down of every run, whatever its rows are."""
    facts, detectors = choice.facts, choice.detectors
    return {
        "versions": {"oodlit": __version__, "python": platform.python_version(), **_versions()},
        "argv": sys.argv,
        "backbone": {
            "name": facts.name,
            "fingerprint": choice.fingerprint,
            "width": facts.width,
            "num_classes": facts.num_classes,
            "head_problem": facts.head_problem,
        },
        "detector_settings": {name: detector_to_config(detector) for name, detector in detectors.items()},
        # Both beside the settings, so that a page of these results needs no import of anybody's detector.
        "overview": {name: overview(detector)._asdict() for name, detector in detectors.items()},
        "references": {name: asdict(detector.reference) for name, detector in detectors.items()},
        "data": {
            "batch_size": datamodule.batch_size,
            "num_workers": datamodule.num_workers,
            "on_error": datamodule.on_error,
            "streams": [
                {"name": s.name, "role": str(s.role), "images": len(s) + len(getattr(s.source, "skipped", ()))}
                for s in datamodule.planned_streams
            ],
        },
        "trainer": {
            "accelerator": type(trainer.accelerator).__name__,
            "strategy": type(trainer.strategy).__name__,
            "precision": str(trainer.precision),
            "processes": trainer.world_size,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        },
    }


def joined(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two records as one; of an entry that is a mapping, or a list, in both, the parts are joined.

    Example:
        >>> joined({"not_applicable": {"vim": "no head"}}, {"not_applicable": {"knn": "no data"}, "config": "a: 1"})
        {'not_applicable': {'vim': 'no head', 'knn': 'no data'}, 'config': 'a: 1'}
    """
    merged = dict(known)
    for name, value in more.items():
        before = known.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = {**before, **value}
        elif isinstance(value, list) and isinstance(before, list):
            merged[name] = [*before, *value]
        else:
            merged[name] = value
    return merged


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
