"""The state of one `trainer.predict`: fit, score, join, evaluate."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from oodlit._lightning import pl
from oodlit.base.distributed import Group, cpu_group, gather_objects
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sets import descriptions
from oodlit.datamodules.stream import Stream
from oodlit.detectors import FitOrigin
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.contract.placement import place_large
from oodlit.detectors.statistics import Statistics, TrainSample, synchronize
from oodlit.detectors.statistics.feature_bank import Copies
from oodlit.errors import DataError
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.results import DatasetInfo, Finding, Results, Settings
from oodlit.results.record_parts import SkippedImage
from oodlit.results.run_record import ImageRunRecord
from oodlit.roles import Role
from oodlit.runs.checks import check_images, check_memory, check_train_size, place_bank
from oodlit.runs.choice import Choice
from oodlit.runs.complete import check_complete
from oodlit.runs.datasets import dataset_infos, train_name
from oodlit.runs.folder import OutputFolder
from oodlit.runs.images.pool_rows import PoolRows
from oodlit.runs.images.rows import ImageRows, check_labels
from oodlit.runs.joining import join_estimates, join_scores, masked_accuracy, unlisted
from oodlit.runs.journal import TRAINING, Kept
from oodlit.runs.record import Record, run_record
from oodlit.runs.resumed import Resumed
from oodlit.runs.verification import Verification
from oodlit.scoring.clock import Clock
from oodlit.scoring.costs import Costs
from oodlit.scoring.scoring import Scoring
from oodlit.scoring.span import OTHER
from oodlit.scoring.time_record import ms_per_image, time_record

SAMPLE_CHUNK = 1024
"""Rows of the training sample that are scored at a time."""


class Run:
    """State of one `trainer.predict`; a new one for every call, so that nothing leaks into the next."""

    def __init__(
        self,
        trainer: pl.Trainer,
        module: OODModule,
        datamodule: OODDataModule,
        choice: Choice,
        *,
        strict: bool = False,
        output: OutputFolder | None = None,
        resumed: Resumed | None = None,
        bank: Copies = "auto",
        clock: Clock | None = None,
    ) -> None:
        self.trainer, self.module, self.datamodule, self.choice = trainer, module, datamodule, choice
        self.facts, self.detectors, self.to_fit = choice.facts, choice.detectors, choice.to_fit
        self.clock = clock or Clock(trainer.strategy.root_device)
        self.scoring = Scoring(choice.detectors, strict=strict, clock=self.clock)
        self.is_recorded = "model" not in self.facts.available
        self.costs = Costs(self.clock, "reading recorded outputs" if self.is_recorded else "the backbone")
        self.verification = Verification(module, str(trainer.precision), decode_on_device=datamodule.decode_on_device)
        self.output = output
        self.resumed = resumed or Resumed()
        self.copies, self.bank = bank, ""
        self.statistics = Statistics()
        self.fitting_done = self.is_fitted = False
        self.group: Group = None
        self.skipped: list[tuple[str, str]] = []
        self.one_shape = True
        """Whether every image of this process had, after the transform, the shape of those of the probe."""
        self.streams: tuple[Stream, ...] = ()
        """All streams of the results."""
        self.reading: tuple[Stream, ...] = ()
        """Those that are read: an earlier run may have read some already."""
        self.rows: dict[str, ImageRows] = {}
        """Of every data set of the results, in their order; training images, which are a sample, as one set."""

    def prepare(self) -> None:
        """Make room for statistics and rows, once it is known which streams are read.

        Raises:
            RequirementError: There are too few training images, or too little memory.
            InvalidArgumentError: A pool has fewer classes than the network.
        """
        self.streams, self.reading = self.datamodule.planned_streams, self.datamodule.active_streams
        names = list(self.detectors)
        for info in self._datasets():
            able = names if info.role is not Role.TRAIN else self._able_to_score_samples()
            if info.role is Role.POOL:
                stream = next(s for s in self.streams if s.name == info.name)
                of_scores = {name: detector.confidences for name, detector in self.detectors.items()}
                self.rows[info.name] = PoolRows(info.name, able, stream=stream, confidences=of_scores)
            else:
                self.rows[info.name] = ImageRows(info.name, able, self._subset(info))
        self.scoring.restore(self.resumed.failed, self.resumed.float64)
        if self.resumed.time is not None:
            self.clock.restore(self.resumed.time)
        self.costs.expect([len(s) for s in self.reading if s.role is not Role.TRAIN], self.trainer.world_size)
        for name, kept in self.resumed.rows.items():
            self.rows[name].restore(kept.state["rows"])
            self.skipped += map(tuple, kept.state["skipped"])
            self.one_shape &= kept.state.get("one_shape", False)
            self.verification.restore(kept.state.get("deviations", {}))
        if self.resumed.has_fit:
            return
        if any(s.role is Role.TRAIN for s in self.streams):
            check_train_size(self.to_fit, self.facts.num_train)
            self.statistics = make_statistics(self.to_fit, extra=(TrainSample,))
            self.bank = place_bank(self.statistics, self.facts, self.trainer, self.copies)
            needed = check_memory(self.statistics, self.facts, self.to_fit, processes=self.trainer.num_devices)
            pl.utilities.rank_zero_info(
                f"oodlit: the fit on {self.facts.num_train} training images takes up to {needed / 1e6:.1f} MB"
                f" per process{'; ' * bool(self.bank)}{self.bank}"
            )
            if self.resumed.training is not None:
                self.statistics.restore(self.resumed.training.state)
                self.skipped += map(tuple, self.resumed.training.state["skipped"])
                self.one_shape &= self.resumed.training.state.get("one_shape", False)
                self.verification.restore(self.resumed.training.state.get("deviations", {}))

    @property
    def num_images(self) -> int:
        """Images of all streams of this run."""
        return sum(len(stream) for stream in self.streams)

    @property
    def origin(self) -> FitOrigin:
        """What the fit belongs to."""
        return FitOrigin(self.choice.fingerprint, self.facts.width, self.facts.num_classes, self.statistics.num_samples)

    def origin_after(self, before: FitOrigin | None) -> FitOrigin | None:
        """What the detectors belong to when this run has ended, whole or not.

        Args:
            before: What they belonged to before it.
        """
        if self.is_fitted:
            for detector in self.to_fit:
                detector.fitted_on = self.choice.fingerprint
            return before if self.choice.kept else self.origin
        if not self.fitting_done:
            return before
        for detector in self.to_fit:  # broken within the fit: some are of this run, some of an earlier one
            detector.forget()
        return None

    @property
    def train_name(self) -> str:
        """Name of the training images in results."""
        return train_name(self.streams)

    def check(self, batch: Any, index: int) -> None:
        """Refuse images of another kind than those of the ID stream, and note where their shape differs."""
        images, like = batch["image"], self.choice.images
        check_images(batch, like, self.reading[index].name)
        self.one_shape &= not len(images) or images.shape[1:] == like.shape[1:]

    def take(self, outputs: Outputs, batch: Any, index: int, *, is_last: bool) -> None:
        """One batch of stream number `index`; the last one of this process, or not."""
        stream = self.reading[index]
        self.skipped += batch.get("skipped", [])
        self.clock.read(batch.get("seconds", {}))
        if len(outputs):
            self.verification.check_logits(outputs, batch)
            self._take(outputs, batch, stream)
        self.resumed.count(stream.name)
        # The statistics may be large, and the fit, which is kept, is near when the last training image is in.
        is_over = is_last and stream.role is not Role.TRAIN
        if self.output is not None and (is_over or self.output.progress.is_due()):
            self._keep_progress(stream, is_last=is_last)
        if is_last and stream.role is Role.TRAIN and self.reading[index + 1].role is not Role.TRAIN:
            self.finish_fit()  # not later: the fit is kept before anything can happen to a test image
        if is_last:
            self._close_streams(self.reading[: index + 1])
        if stream.role is not Role.TRAIN:
            self.costs.count(len(batch["image"]))

    def _keep_progress(self, stream: Stream, *, is_last: bool) -> None:
        """Write how far this process has come, so that a run after a kill can go on from here."""
        assert self.output is not None
        done = self.resumed.done[stream.name]
        if stream.role is not Role.TRAIN:
            self.output.progress.keep(stream.name, Kept(done, is_last, self._state(stream.name)))
        elif self.statistics.can_be_saved:
            batches = {s.name: self.resumed.done.get(s.name, 0) for s in self.streams if s.role is Role.TRAIN}
            state = {**self.statistics.state(), "batches": batches, "skipped": self.skipped}
            state |= {"one_shape": self.one_shape, "deviations": self.verification.state()}
            state["time"] = self.clock.state()
            self.output.progress.keep(TRAINING, Kept(done, is_last, state))

    def _state(self, dataset: str) -> dict[str, Any]:
        return {
            "rows": self.rows[dataset].state(),
            "skipped": [(key, reason) for key, reason in self.skipped if key.startswith(f"{dataset}/")],
            "one_shape": self.one_shape,
            "deviations": self.verification.state(),
            "failed": self.scoring.failed,
            "float64": sorted(self.scoring.float64),
            "time": self.clock.state(),
        }

    def _take(self, outputs: Outputs, batch: Any, stream: Stream) -> None:
        if stream.role is Role.TRAIN:
            check_labels(outputs, stream)
            self.clock.enter("statistics")
            self.statistics.update(outputs)
            self.clock.enter(OTHER)
            return
        self.finish_fit()
        scores = self.scoring.score(outputs, stream.name)
        self.verification.check_scores(scores, batch, self.detectors)
        check_labels(outputs, stream)  # not earlier: it waits for the device
        self._add(stream.name, outputs, scores)

    def _add(self, dataset: str, outputs: Outputs, scores: dict[str, Tensor]) -> None:
        for name, error in self.rows[dataset].add(outputs, scores).items():
            self.scoring.leave_out(name, error, dataset, outputs)

    def _close_streams(self, over: Sequence[Stream]) -> None:
        """Keep the rows of streams that are over for this process."""
        if self.output is not None and self.fitting_done:
            for name in dict.fromkeys(self.train_name if s.role is Role.TRAIN else s.name for s in over):
                rows = self.rows[name]
                active = [detector for detector in rows.detectors if detector not in self.scoring.failed]
                sums = rows.sums.frame if isinstance(rows, PoolRows) else None
                self.output.keep_scores(name, rows.frame, sums, detectors=active)

    def finish_fit(self) -> None:
        """The first of the two points where processes meet: reduce the statistics and fit."""
        if self.fitting_done:
            return
        self.fitting_done = True
        self.clock.enter("waiting for processes")
        self.group = cpu_group()
        if self.resumed.has_fit:
            self.is_fitted = True
            self._place_large()
            if self.output is not None:
                self.output.go_on(self._datasets(), self.resumed.over)
            return
        for stream in (s for s in self.streams if s.role is Role.TRAIN):
            check_complete(stream, self.group)
        synchronize(self.statistics.values(), self.group)
        self.clock.enter(OTHER)
        if self.statistics and self.statistics.num_samples == 0:
            self._refuse_without_training()
        head = None if self.facts.head_problem else self.module.head
        for name in self.detectors:
            if name not in self.choice.kept:
                self.scoring.fit(name, self.statistics, head, self.train_name or "the head")
        self.is_fitted = True
        self._place_large()
        if self.output is not None:
            fitted = {name: self.detectors[name] for name in self.scoring.active}
            origin = self.choice.earlier if self.choice.kept and self.choice.earlier else self.origin
            self.output.begin(self.record(), self._datasets(), fitted, origin, self.group)
        self._score_train_sample()
        if self.output is not None and self.train_name:
            self.output.progress.keep(self.train_name, Kept(0, True, self._state(self.train_name)))
            self.output.progress.drop(TRAINING)
        self._close_streams([stream for stream in self.streams if stream.role is Role.TRAIN])

    def _place_large(self) -> None:
        """Banks go to the device of this run once, where they fit."""
        fitted = {name: self.detectors[name] for name in self.scoring.active}
        if text := place_large(fitted, self.module.device):
            pl.utilities.rank_zero_info(f"oodlit: {text}")
            self.bank = "; ".join(filter(None, (self.bank, text)))

    def _refuse_without_training(self) -> None:
        """A message with the reason, where detectors wait for training images and none came."""
        if not any(d.required_statistics for d in self.to_fit):
            return
        first = f", first {self.skipped[0][0]}: {self.skipped[0][1]}" if self.skipped else ""
        raise DataError(
            f"none of the {self.facts.num_train} training images of {self.train_name!r} could be used"
            f" ({len(self.skipped)} were skipped on this process{first}); detectors cannot be fitted"
        )

    def record(self) -> ImageRunRecord:
        """What is known about this run before its results."""
        return structs.replace(
            run_record(self.trainer, self.module, self.datamodule, self.choice),
            key="" if self.output is None else self.output.progress.digest,
            resumed=self.resumed.text,
            bank=self.bank,
            not_applicable=self.choice.not_applicable | self.scoring.failed,
            acceleration=self.verification.record,
            fit_notes={name: list(d.notes) for name, d in self.detectors.items() if d.notes},
            confidences=self._confidences() if self._pools() else {},
            findings=[*self.choice.findings, *self._failures()],
        )

    def _pools(self) -> list[PoolRows]:
        return [rows for rows in self.rows.values() if isinstance(rows, PoolRows)]

    def _confidences(self) -> dict[str, str]:
        """What the severities are means of."""
        return {name: "exp(score)" if d.log_probability else "score" for name, d in self.detectors.items()}

    def _failures(self) -> list[Finding]:
        reasons = self.scoring.failed.items()
        return [
            Finding("failed", f"detector {name!r} is not among the results: it {reason}") for name, reason in reasons
        ]

    def finish(self, evaluation: Settings, *, record: Record) -> Results:
        """The second point where processes meet: join the rows and evaluate.

        Args:
            evaluation: Settings of the metrics.
            record: Gives further entries of the record.
        """
        self.finish_fit()
        self._close_streams(self.streams)
        self.clock.enter("waiting for processes")
        for stream in (s for s in self.reading if s.role is not Role.TRAIN):
            check_complete(stream, self.group)
        for failed in gather_objects(self.group, self.scoring.failed):
            self.scoring.failed |= failed
        if not self.scoring.active:
            raise self.scoring.first_error or DataError("every detector failed on some process; see its messages")
        scores, skipped = join_scores(self.rows.values(), self.scoring, self.skipped, self.group)
        self.verification.join(self.group)
        pools, active = self._pools(), self.scoring.active
        severities = join_estimates(pools, self._datasets(), active, self._confidences(), self.group)
        run = self.record()
        one_shape = all(gather_objects(self.group, self.one_shape))
        run = structs.replace(
            run,
            backbone=structs.replace(run.backbone, one_shape=one_shape),
            skipped=[SkippedImage(key, reason) for key, reason in skipped],
            masked_accuracy=masked_accuracy(self.rows, scores, self.group),
            findings=[*run.findings, *unlisted(pools, self.group)],
        )
        self.clock.enter("metrics")
        results = Results.from_scores(
            scores, self._datasets(), active, run=run, estimates=severities, **evaluation.to_json()
        )
        self.clock.enter(OTHER)
        times = gather_objects(self.group, self.clock.state(wait=True))
        time = time_record(times)
        if self.is_recorded:  # no network ran
            time = structs.replace(time, backbone_ms=None)
        known = structs.replace(results.run, ms_per_image=ms_per_image(times), time=time)
        if skipped:
            warnings.warn(
                f"{len(skipped)} images were skipped, first {skipped[0][0]}: {skipped[0][1]};"
                " all are listed in results.run.skipped",
                stacklevel=2,
            )
        return results.with_record(known.with_entries(record()))

    def _subset(self, info: DatasetInfo) -> Tensor | None:
        """Classes of a known set that has images of a part of them only."""
        known = descriptions().get(info.name)
        has_both = known is not None and known.label_subset and self.facts.num_classes  # without logits, no prediction
        return torch.tensor(sorted(known.label_subset)) if known is not None and has_both else None

    def _datasets(self) -> list[DatasetInfo]:
        return dataset_infos(self.streams, self.facts.num_classes)

    def _able_to_score_samples(self) -> list[str]:
        """Detectors that read images cannot score kept outputs; their thresholds stay undefined."""
        return [n for n, d in self.detectors.items() if not d.required_needs & {"images", "hidden", "model"}]

    def _score_train_sample(self) -> None:
        """Score this process's share of the training sample: thresholds of the detection error rate."""
        if TrainSample not in self.statistics or self.statistics.num_samples == 0:
            return
        name, sample, able = self.train_name, self.statistics[TrainSample], self._able_to_score_samples()
        keys = [f"{name}/sample-{value:016x}" for value in sample.column("hash").tolist()]
        share = slice(self.trainer.global_rank, None, self.trainer.world_size)
        mine, mine_keys = sample.outputs.select(share), keys[share]
        for start in range(0, len(mine) if able else 0, SAMPLE_CHUNK):
            rows = slice(start, start + SAMPLE_CHUNK)
            part = mine.select(rows).to(self.module.device)
            outputs = Outputs(part.logits, part.features, labels=part.labels, keys=mine_keys[rows])
            self._add(name, outputs, self.scoring.score(outputs, name, able))
