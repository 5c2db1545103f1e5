"""Make the record of a run, with everything required to check and repeat its numbers."""

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from msgspec import structs

from oodlit._lightning import pl
from oodlit._version import __version__
from oodlit.backbones.backbone import Backbone
from oodlit.backbones.facts import published_as
from oodlit.backbones.recipe import recipe_of
from oodlit.base.value_description import shown
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream_identity import decoder_of
from oodlit.detectors import Detector
from oodlit.detectors import detectors as known_detectors
from oodlit.detectors.contract.overview import overview
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.results.record_parts import (
    BackboneRecord,
    ClassifierRecord,
    DataRecord,
    DetectorConfig,
    DetectorOverview,
    PublishedAs,
    ReferenceRecord,
    StreamRecord,
    TrainerRecord,
)
from oodlit.results.run_record import ImageRunRecord, RunRecord
from oodlit.runs.choice import Choice

Record = Callable[[], Mapping[str, Any]]
"""Makes additional entries of the run's record."""

PACKAGES = ("numpy", "pandas", "pytorch-lightning", "timm", "torch", "torchmetrics", "torchvision")


R = TypeVar("R", bound=RunRecord)


def run_record(trainer: pl.Trainer, module: Backbone, datamodule: OODDataModule, choice: Choice) -> ImageRunRecord:
    """The part of the record of a run of images that is known before the first image."""
    record = common_record(ImageRunRecord, trainer, datamodule, choice)
    backbone = ClassifierRecord(
        **structs.asdict(_backbone(choice)),
        head=" + ".join(module.head_layers),
        transform=shown(choice.transform),
        transform_recipe=recipe_of(choice.transform),
        arguments=module.arguments,
        input_shape=list(choice.images.shape[1:]),
    )
    published = None if backbone.is_untrained else published_as(module.network, choice.transform)
    return structs.replace(
        record,
        data=structs.replace(record.data, train_images=choice.facts.num_train),
        backbone=structs.replace(backbone, published_as=PublishedAs(**published) if published else None),
    )


def common_record(kind: type[R], trainer: pl.Trainer, datamodule: OODDataModule, choice: Choice) -> R:
    """The part of the record that runs of every kind have."""
    detectors = choice.detectors
    return kind(
        versions={"oodlit": __version__, "python": platform.python_version(), **_versions()},
        argv=[Path(sys.argv[0]).name, *sys.argv[1:]],  # the folder of the program tells about the machine alone
        backbone=_backbone(choice),
        detector_settings={n: DetectorConfig(**detector_to_config(detector)) for n, detector in detectors.items()},
        dry_run=_dry_run(trainer),
        # Both beside the settings, so that a page of these results needs no import of a custom detector.
        overview={
            name: DetectorOverview(*overview(detector), _same_order(detector, detectors), detector.display_name)
            for name, detector in detectors.items()
        },
        references={name: ReferenceRecord(**asdict(detector.reference)) for name, detector in detectors.items()},
        data=DataRecord(
            batch_size=datamodule.batch_size,
            num_workers=datamodule.num_workers,
            on_error=datamodule.on_error,
            decoder=decoder_of(datamodule.decode),
            streams=[
                StreamRecord(s.name, str(s.role), len(s) + len(getattr(s.source, "skipped", ())))
                for s in datamodule.planned_streams
            ],
        ),
        trainer=TrainerRecord(
            accelerator=type(trainer.accelerator).__name__,
            strategy=type(trainer.strategy).__name__,
            precision=str(trainer.precision),
            processes=trainer.world_size,
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        ),
    )


def _dry_run(trainer: pl.Trainer) -> str:
    limit = trainer.limit_predict_batches
    return "" if limit == 1.0 and isinstance(limit, float) else f"limit_predict_batches={limit}"


def _same_order(detector: Detector, others: Mapping[str, Detector]) -> dict[str, str]:
    """Reasons of `Detector.same_order_as`, by the names of the detectors in this run."""
    keys = {kind: key for key, kind in known_detectors().items()}
    found = {name: detector.same_order_as.get(keys.get(type(other), "")) for name, other in others.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def _backbone(choice: Choice) -> BackboneRecord:
    facts = choice.facts
    return BackboneRecord(
        name=facts.name,
        fingerprint=choice.fingerprint,
        width=facts.width,
        num_classes=facts.num_classes,
        head_problem=facts.head_problem,
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
