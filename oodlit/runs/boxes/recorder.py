"""The recorder of box runs: a row is a box."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.processes.distributed import gather_objects
from oodlit.base.roles import Role
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.thinning import whole_size
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.statistics import Statistics
from oodlit.objects.benchmark import ObjectBenchmark
from oodlit.objects.detections import Detections
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.fit_rows import FitOn, ImageObjects, fit_rows
from oodlit.objects.from_files import f1_confidence
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.module import ObjectModule
from oodlit.objects.results.record import BoxFit, BoxRunRecord
from oodlit.objects.results.results import ObjectResults
from oodlit.objects.results.tables import ObjectSet
from oodlit.results import DatasetInfo, Finding
from oodlit.results.names import metric_names
from oodlit.runs.boxes.rows import BoxRows, same_boxes
from oodlit.runs.choice import Probe, probe_images, randomness
from oodlit.runs.folder import FITTED
from oodlit.runs.loggers import RunLog, settings_of
from oodlit.runs.record import common_record
from oodlit.runs.run_checks import Parts, check_memory
from oodlit.runs.scored import ScoredRun
from oodlit.runs.start import Start
from oodlit.scoring.clock import OTHER

BOXES = Parts(ObjectModule, "ObjectModule", ObjectBenchmark, Detections, "ObjectBenchmark(...)")


@dataclass(frozen=True)
class BoxSettings:
    """Settings of a run over boxes.

    Args:
        metrics: How metrics are computed; its t* is also the least confidence of the boxes that are fitted on.
        t_star_rule: See `ObjectDetection`.
        fit_on: See `ObjectDetection`.
    """

    metrics: ObjectSettings
    t_star_rule: Literal["given", "f1"]
    fit_on: FitOn

    @property
    def rule(self) -> str:
        """The rule of t*, as recorded in the results."""
        return "given" if self.t_star_rule == "given" else "best F1 on the ID set"


def probe_boxes(module: ObjectModule, datamodule: ObjectBenchmark, *, layers: Sequence[str]) -> Probe:
    """Pass the first ID images through the network, to learn its outputs and to check that the data fit.

    Raises:
        DataError: No ID image can be used.
        InvalidArgumentError: The classes of network and data differ.
    """
    images = probe_images(datamodule, datamodule.transform)
    train = [stream.name for stream in datamodule.streams if stream.role is Role.TRAIN]
    facts = module.probe(images, sum(len(datamodule.annotations[name]) for name in train), layers=layers)
    _check_classes(module, datamodule, facts.num_classes)
    findings = (*datamodule.findings, *randomness(facts))
    return Probe(datamodule.transform, images, facts, lambda: module.fingerprint, findings)


def _check_classes(module: ObjectModule, datamodule: ObjectBenchmark, num_classes: int) -> None:
    """Refuse data with other classes than the logits: every result would be wrong."""
    names = datamodule.class_names
    if module.class_names and module.class_names != names:
        raise InvalidArgumentError(
            f"the object detector has the classes {', '.join(module.class_names[:8])}, but the data has the classes"
            f" {', '.join(names[:8])} (at most the first 8 of each list are shown); pass the classes of the detector to"
            " the data: ObjectBenchmark(..., class_names=module.class_names)"
        )
    if len(names) != num_classes:
        raise InvalidArgumentError(
            f"{module.name} returns {num_classes} class logits, but the data has {len(names)} classes"
            f" ({', '.join(names[:8])}); pass the names in the order of the logits: ObjectBenchmark(class_names=[...])"
        )


class BoxRecorder(ScoredRun):
    """State of one `trainer.predict` over boxes; every call creates a new recorder.

    Args:
        start: What is known of the run.
        settings: Settings of this kind of run.
    """

    loader = "ObjectResults"
    datamodule: ObjectBenchmark

    def __init__(self, start: Start, settings: BoxSettings) -> None:
        super().__init__(start, match=same_boxes)
        self.settings, self.cut = settings, settings.metrics.t_star
        self.num_boxes = 0
        """Number of training boxes, of this process until the fit and of all processes after it."""
        self._objects: dict[str, ImageObjects] = {}
        self._sizes: dict[str, dict[str, tuple[int, ...]]] = {}

    @property
    def prediction_bytes(self) -> int:
        """Memory for logits and features of all boxes of this process, estimated from the first ID images."""
        found = self.module([image.to(self.module.device) for image in self.choice.images])
        return int(super().prediction_bytes * sum(map(len, found)) / len(found))

    def key(self, streams: Sequence[Stream]) -> dict[str, Any]:
        """Everything that the scores depend on; settings of the metrics do not count."""
        return {
            **super().key(streams),
            "fit": {"on": self.settings.fit_on, "confidence": self.cut},
            "boxes": {"min_confidence": self.module.min_confidence, "cells": self.module.cells},
            "annotations": {name: _digest(one) for name, one in self.datamodule.annotations.items()},
        }

    def datasets(self) -> list[DatasetInfo]:
        """All data sets of the run."""
        return [DatasetInfo(stream.name, stream.role, (), whole_size(stream)) for stream in self.streams]

    def make_rows(self) -> dict[str, BoxRows]:
        """Empty rows by data set."""
        for stream in self.streams:
            annotations = self.datamodule.annotations[stream.name]
            self._sizes[stream.name] = dict(zip(annotations.keys, map(tuple, annotations.sizes.tolist()), strict=True))
            if stream.role is Role.TRAIN and self.settings.fit_on == "matched":
                self._objects[stream.name] = ImageObjects(annotations)
        tests = (stream.name for stream in self.streams if stream.role is not Role.TRAIN)
        return {name: BoxRows(name, list(self.detectors)) for name in tests}

    def make_statistics(self) -> Statistics:
        """Empty statistics for the fit.

        Raises:
            RequirementError: There is too little memory.
        """
        statistics = make_statistics(self.choice.to_fit)
        check_memory(statistics, self.choice.facts, processes=self.trainer.num_devices)
        return statistics

    def more_state(self) -> dict[str, Any]:
        """Number of training boxes so far."""
        return {"num_boxes": self.num_boxes}

    def restore_more(self, state: dict[str, Any]) -> None:
        """Restore the values of `more_state`."""
        self.num_boxes = self.num_fitted = state["num_boxes"]

    def take_training(self, found: Detections, stream: Stream) -> None:
        """Feed the boxes of one batch of training images to the statistics."""
        self._check_sizes(found, stream.name)
        rows = fit_rows(found, cut=self.cut, objects=self._objects.get(stream.name))
        if rows is not None:
            self.num_boxes += len(rows)
            self.clock.enter("statistics")
            self.statistics.update(rows)
            self.clock.enter(OTHER)

    def take_test(self, found: Detections, batch: Any, stream: Stream) -> None:
        """Score the boxes of one batch."""
        self._check_sizes(found, stream.name)
        self.finish_fit()
        outputs = found.outputs
        scores = {} if outputs is None or not len(found) else self.scoring.score(outputs, stream.name)
        self.verification.check_scores(found, scores, batch, self.detectors)
        self.add(stream.name, found, scores, outputs)

    def _check_sizes(self, found: Detections, dataset: str) -> None:
        """Refuse pictures whose size differs from the annotations: the boxes would be at wrong places."""
        if found.sizes is None:
            return
        for key, size in zip(found.keys, map(tuple, found.sizes.tolist()), strict=True):
            if size != self._sizes[dataset][key]:
                wide, high = self._sizes[dataset][key]
                raise DataError(
                    f"{key}: the picture has {size[0]} x {size[1]} pixels, but the annotations expect {wide} x {high};"
                    " use the pictures in the size and orientation in which they were annotated"
                )

    def check_fit_rows(self) -> int:
        """Count the training boxes of all processes.

        Raises:
            DataError: There are none, and detectors are fitted on them.
        """
        self.num_boxes = sum(gather_objects(self.group, self.num_boxes))
        if self.statistics and self.num_boxes == 0:
            raise DataError(
                f"detectors cannot be fitted, because no box of the training images has a confidence of at"
                f" least {self.cut:g}"
                f"{' and hits an object of the predicted class' if self.settings.fit_on == 'matched' else ''};"
                " lower t_star, or check the object detector, the order of its classes, and the pictures"
            )
        return self.num_boxes

    def record(self) -> BoxRunRecord:
        """The record of the run, without its boxes."""
        return structs.replace(
            self.with_common(common_record(BoxRunRecord, self.trainer, self.datamodule, self.choice)),
            settings=self.settings.metrics,
            model=self.module.name,
            min_confidence=self.module.min_confidence,
            fit=BoxFit(self.settings.fit_on, self.cut, self.num_fitted),
            t_star_rule=self.settings.rule,
        )

    def evaluate(self) -> ObjectResults:
        """Join the boxes of all processes, and compute every metric."""
        sets = [self._set(stream) for stream in self.streams if stream.role is not Role.TRAIN]
        settings = self.settings.metrics
        if self.settings.t_star_rule == "f1":
            known = next(part for part in sets if part.info.role is Role.ID)
            best = f1_confidence(known.detections, known.annotations)
            # Below the least confidence that is kept there are no boxes: a lower t* would promise them.
            settings = settings.changed(t_star=max(best, self.module.min_confidence))
        self.clock.enter("metrics")
        run = self.record().with_entries(self.start.more_record())
        results = ObjectResults.from_sets(sets, class_names=self.datamodule.class_names, settings=settings, run=run)
        cost, time = self.measured()
        run = structs.replace(results.run, ms_per_box=cost, time=time)
        return replace(results, run=run)

    def _set(self, stream: Stream) -> ObjectSet:
        found, scores = self.rows[stream.name].gather(self.group, detectors=self.scoring.active)
        info = DatasetInfo(stream.name, stream.role, (), whole_size(stream))
        return ObjectSet(info, found, self.datamodule.annotations[stream.name], scores)

    def findings(self) -> Iterable[Finding]:
        """Findings of the results; failed detectors were reported earlier."""
        return (found for found in self.results.run.findings if found.kind != "failed")

    def is_of(self, folder: Path, key: str) -> bool:
        """Whether a folder contains the results of this run: equal scores and settings."""
        results = ObjectResults.load(folder)
        found, asked = results.settings, self.settings
        wanted = asked.metrics if asked.t_star_rule == "given" else asked.metrics.changed(t_star=found.t_star)
        return found == wanted and (results.run.key, results.run.t_star_rule) == (key, asked.rule)

    def write(self, folder: Path, **options: Any) -> Path:
        """Write the results to a folder."""
        return Path(self.results.save(folder, **options))

    def run_log(self) -> RunLog:
        """Values and settings."""
        table = self.results.table
        return RunLog(dict(zip(metric_names(table), table["value"], strict=True)), settings_of(self.results.run))

    def where(self, kept: Path) -> str:
        """Describe how to continue with the folder of an interrupted run."""
        if not self.is_fitted or not (kept / FITTED).is_dir():
            return ""
        return f"reuse the fit with ObjectDetection(fitted={str(kept / FITTED)!r}, ...), or resume with resume=True"


def _digest(annotations: Annotations) -> str:
    """A digest of all annotated objects: metrics and matched boxes depend on them."""
    digest = hashlib.blake2b(digest_size=12)
    for name in ("sizes", "boxes", "image", "labels", "is_crowd"):
        digest.update(getattr(annotations, name).numpy().tobytes())
    digest.update(repr((annotations.keys, annotations.class_names)).encode(errors="surrogatepass"))
    return digest.hexdigest()
