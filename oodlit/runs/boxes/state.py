"""The state of one `trainer.predict` over boxes: fit, score, join."""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from oodlit._lightning import pl
from oodlit.base.distributed import Group, cpu_group, gather_objects
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.thinning import whole_size
from oodlit.detectors import Detector, FitOrigin
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.contract.placement import place_large
from oodlit.detectors.statistics import Statistics, synchronize
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects.benchmark import ObjectBenchmark
from oodlit.objects.detections import Detections
from oodlit.objects.fit_rows import FitOn, ImageObjects, fit_rows
from oodlit.objects.module import ObjectModule
from oodlit.objects.results.record import BoxFit, BoxRunRecord
from oodlit.objects.results.tables import ObjectSet
from oodlit.results import DatasetInfo, Finding
from oodlit.results.record_parts import SkippedImage
from oodlit.roles import Role
from oodlit.runs.boxes.rows import BoxRows
from oodlit.runs.checks import check_memory, check_train_size
from oodlit.runs.choice import Choice, cost_text, probe_images, reasons_against
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.runs.record import common_record
from oodlit.scoring.clock import Clock
from oodlit.scoring.scoring import Scoring


def choose(
    trainer: pl.Trainer,
    module: ObjectModule,
    datamodule: ObjectBenchmark,
    detectors: Mapping[str, Detector],
    earlier: EarlierFit,
    *,
    strict: bool,
) -> Choice:
    """Probe the network with the first ID images, and decide which OOD detectors run.

    Raises:
        DataError: No ID image can be used.
        InvalidArgumentError: The classes of network and data differ.
        RequirementError: A detector does not apply and `strict` is set, or none applies.
        FingerprintError: An earlier fit belongs to another network.
    """
    images = probe_images(datamodule, datamodule.transform)
    train = [stream.name for stream in datamodule.streams if stream.role is Role.TRAIN]
    num_train = sum(len(datamodule.annotations[name]) for name in train)
    layers = tuple(dict.fromkeys(layer for d in detectors.values() for layer in d.required_layers))
    facts = module.probe(images, num_train, layers=layers)
    _check_classes(module, datamodule, facts.num_classes)
    reasons = reasons_against(detectors, facts, strict=strict)
    for name, reason in reasons.items():
        warnings.warn(f"detector {name!r} is left out: it {reason}", stacklevel=3)
    applicable = {name: detector for name, detector in detectors.items() if name not in reasons}
    kept = earlier.kept(applicable, has_train=num_train > 0)
    here = FitOrigin(module.fingerprint, facts.width, facts.num_classes)
    earlier.check({name: applicable[name] for name in kept}, here)
    if cost := cost_text(applicable):
        pl.utilities.rank_zero_info(f"oodlit: {cost}")
    return Choice(
        datamodule.transform,
        here.fingerprint,
        facts,
        images,
        applicable,
        reasons,
        kept,
        datamodule.findings,
        earlier.origin,
    )


def _check_classes(module: ObjectModule, datamodule: ObjectBenchmark, num_classes: int) -> None:
    """Refuse data whose classes are not those of the logits: every number would be about something else."""
    names = datamodule.class_names
    if module.class_names and module.class_names != names:
        raise InvalidArgumentError(
            f"the detector's classes are {', '.join(module.class_names[:8])}, those of the data {', '.join(names[:8])};"
            " give the data the detector's: ObjectBenchmark(..., class_names=module.class_names)"
        )
    if len(names) != num_classes:
        raise InvalidArgumentError(
            f"{module.name} gives {num_classes} class logits, the data names {len(names)} classes"
            f" ({', '.join(names[:8])}); give the names in the order of the logits: ObjectBenchmark(class_names=[...])"
        )


class ObjectRun:
    """State of one `trainer.predict`; a new one for every call.

    Args:
        trainer: The Trainer.
        module: The object detector.
        datamodule: Images and annotated objects.
        choice: What runs.
        cut: Least confidence of the boxes that detectors are fitted on (t*).
        fit_on: "predicted": all of them; "matched": those that hit an object of their class.
        strict: True raises what a detector raises.
        keep_fit: Called by the first process with the detectors as soon as they are fitted; None = nobody.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        module: ObjectModule,
        datamodule: ObjectBenchmark,
        choice: Choice,
        *,
        cut: float,
        fit_on: FitOn,
        strict: bool,
        keep_fit: Callable[[dict[str, Detector], FitOrigin | None], None] | None = None,
    ) -> None:
        self.keep_fit = keep_fit
        self.trainer, self.module, self.datamodule, self.choice = trainer, module, datamodule, choice
        self.cut, self.fit_on = cut, fit_on
        self.scoring = Scoring(choice.detectors, strict=strict, clock=Clock(trainer.strategy.root_device))
        self.statistics = Statistics()
        self.group: Group = None
        self.fitting_done = self.is_fitted = False
        self.skipped: list[tuple[str, str]] = []
        self.num_fitted = 0
        self.seconds: dict[str, float] = {}
        self.clock = time.perf_counter()
        self.streams: tuple[Stream, ...] = ()
        self.rows: dict[str, BoxRows] = {}
        self._objects: dict[str, ImageObjects] = {}
        self._sizes: dict[str, dict[str, tuple[int, int]]] = {}

    def prepare(self) -> None:
        """Make room, once it is known which streams are read.

        Raises:
            RequirementError: There are too few training objects, or too little memory.
        """
        self.streams = self.datamodule.active_streams
        for stream in self.streams:
            annotations = self.datamodule.annotations[stream.name]
            sizes = map(tuple, annotations.sizes.tolist())
            self._sizes[stream.name] = dict(zip(annotations.keys, sizes, strict=True))
            if stream.role is not Role.TRAIN:
                self.rows[stream.name] = BoxRows(stream.name, list(self.choice.detectors))
            elif self.fit_on == "matched":
                self._objects[stream.name] = ImageObjects(annotations)
        if any(stream.role is Role.TRAIN for stream in self.streams):
            check_train_size(self.choice.to_fit, self.choice.facts.num_train)
            self.statistics = make_statistics(self.choice.to_fit)
            check_memory(self.statistics, self.choice.facts, processes=self.trainer.num_devices)
        self._lap("preparation")

    def take(self, found: Detections, batch: Any, index: int) -> None:
        """One batch of stream number `index`."""
        stream = self.streams[index]
        self.skipped += batch.get("skipped", [])
        self._check_sizes(found, stream.name)
        if stream.role is Role.TRAIN:
            rows = fit_rows(found, cut=self.cut, objects=self._objects.get(stream.name))
            if rows is not None:
                self.num_fitted += len(rows)
                self.statistics.update(rows)
            return
        self.finish_fit()
        outputs = found.outputs
        scores = {} if outputs is None or not len(found) else self.scoring.score(outputs, stream.name)
        for name, error in self.rows[stream.name].add(found, scores).items():
            self.scoring.leave_out(name, error, stream.name, outputs)

    def _check_sizes(self, found: Detections, dataset: str) -> None:
        """Refuse pictures that are not those of the annotations: their boxes would mean other places."""
        if found.sizes is None:
            return
        for key, size in zip(found.keys, map(tuple, found.sizes.tolist()), strict=True):
            if size != self._sizes[dataset][key]:
                wide, high = self._sizes[dataset][key]
                raise DataError(
                    f"{key}: the picture is {size[0]} x {size[1]}, its annotations are made for {wide} x {high} pixels;"
                    " take the pictures as they were annotated, not resized or turned"
                )

    def finish_fit(self) -> None:
        """The first of the two points where processes meet: reduce the statistics and fit."""
        if self.fitting_done:
            return
        self.fitting_done = True
        if self.statistics:
            self._lap("training_images")
        self.group = cpu_group()
        synchronize(self.statistics.values(), self.group)
        self.num_fitted = sum(gather_objects(self.group, self.num_fitted))
        if self.statistics and self.num_fitted == 0:
            raise DataError(
                f"no box of the training images has a confidence of {self.cut:g} or more"
                f"{' and hits an object of its class' if self.fit_on == 'matched' else ''}: detectors cannot be fitted;"
                " lower t_star, or look at the detector, the order of its classes, and the pictures"
            )
        head = None if self.choice.facts.head_problem or self.module.head_problem else self.module.head
        train = "+".join(stream.name for stream in self.streams if stream.role is Role.TRAIN)
        for name, detector in self.choice.detectors.items():
            if name not in self.choice.kept:
                self.scoring.fit(name, self.statistics, head, train or "the head")
                detector.fitted_on = self.choice.fingerprint
        self.is_fitted = True
        if self.keep_fit is not None and self.trainer.is_global_zero:
            self.keep_fit({name: self.choice.detectors[name] for name in self.scoring.active}, self.origin)
        if text := place_large({n: self.choice.detectors[n] for n in self.scoring.active}, self.module.device):
            pl.utilities.rank_zero_info(f"oodlit: {text}")
        self._lap("fit")

    @property
    def origin(self) -> FitOrigin | None:
        """What the fit belongs to."""
        if self.choice.kept and self.choice.earlier:
            return self.choice.earlier
        facts = self.choice.facts
        return FitOrigin(self.choice.fingerprint, facts.width, facts.num_classes, self.num_fitted)

    def finish(self) -> list[ObjectSet]:
        """The second point where processes meet: all boxes of every test set, the same on every process."""
        self.finish_fit()
        self._lap("test_images")
        for failed in gather_objects(self.group, self.scoring.failed):
            self.scoring.failed |= failed
        if not self.scoring.active:
            raise self.scoring.first_error or DataError("every detector failed on some process; see its messages")
        parts = gather_objects(self.group, self.skipped)
        self.skipped = sorted({(key, reason) for part in parts for key, reason in part})
        return [self._set(stream) for stream in self.streams if stream.role is not Role.TRAIN]

    def _set(self, stream: Stream) -> ObjectSet:
        found, scores = self.rows[stream.name].gather(self.group, detectors=self.scoring.active)
        info = DatasetInfo(stream.name, stream.role, (), whole_size(stream))
        return ObjectSet(info, found, self.datamodule.annotations[stream.name], scores)

    def record(self) -> BoxRunRecord:
        """What is known of this run besides its boxes."""
        failed = self.scoring.failed
        findings = [
            *self.choice.findings,
            *(Finding("failed", f"detector {n!r} is not among the results: it {why}") for n, why in failed.items()),
        ]
        return structs.replace(
            common_record(BoxRunRecord, self.trainer, self.datamodule, self.choice),
            model=self.module.name,
            min_confidence=self.module.min_confidence,
            not_applicable=self.choice.not_applicable | failed,
            fit_notes={name: list(d.notes) for name, d in self.choice.detectors.items() if d.notes},
            findings=findings,
            fit=BoxFit(self.fit_on, self.cut, self.num_fitted),
            skipped=[SkippedImage(key, reason) for key, reason in self.skipped],
            ms_per_box=self.scoring.cost_ms(),
            seconds=dict(self.seconds),
        )

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self.clock, 3)
        self.clock = now
