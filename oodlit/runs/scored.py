"""The lifecycle of runs over images and over boxes: fit detectors on training rows, score test rows, resume."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs
from torch import Tensor

from oodlit._lightning import pl
from oodlit.base.errors import DataError, RunIsCompleteError
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, cpu_group, gather_objects
from oodlit.base.roles import Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import warn_of_changed_files
from oodlit.detectors import Detector, FitOrigin
from oodlit.detectors.contract.placement import place_large
from oodlit.detectors.statistics import Statistics, synchronize
from oodlit.results import Finding, FindingWarning, UnfinishedRunWarning
from oodlit.results.files.storage import TABLE, is_complete
from oodlit.results.record_parts import SkippedImage, TimeRecord
from oodlit.results.run_record import RunRecord
from oodlit.runs.choice import cost_text
from oodlit.runs.complete import check_complete
from oodlit.runs.datasets import train_name
from oodlit.runs.folder import OutputFolder, working_folder
from oodlit.runs.journal import RUN, TRAINING, Kept, Progress, cut_of, run_key
from oodlit.runs.loggers import log_to_all
from oodlit.runs.resumed import Resumed, position_text, resume
from oodlit.runs.row_kind import RowKind
from oodlit.runs.run_checks import check_same_run, check_train_size, warn_of_skipped
from oodlit.runs.start import Start
from oodlit.runs.time_record import ms_per_image, time_record
from oodlit.runs.verification import Match, Verification, every_row
from oodlit.scoring.clock import OTHER
from oodlit.scoring.costs import Costs
from oodlit.scoring.scoring import Scoring

R = TypeVar("R", bound=RunRecord)
REPORTED_EARLIER = ("failed", "random")
"""Kinds of findings that are reported as soon as they are known, not at the end of the run."""


class ScoredRun(RowKind):
    """Fit detectors on the rows of the training streams, and score the rows of all other streams.

    Processes meet at two points: `finish_fit` and `finish`.

    Args:
        start: What is known of the run.
        train_thresholds: Whether training images are read even if no detector is fitted.
        than: What the cost of detectors is compared with.
        match: Finds the rows of a batch among those of the plain network.
    """

    def __init__(
        self, start: Start, *, train_thresholds: bool = False, than: str = "the backbone", match: Match = every_row
    ) -> None:
        self.start, self.options, self.choice, self.clock = start, start.options, start.choice, start.clock
        self.trainer, self.module, self.output = start.trainer, start.module, start.output
        self.datamodule: OODDataModule = start.datamodule
        self.plan = replace(self.choice.plan(train_thresholds=train_thresholds), asked=self.clock.wait_for_data)
        self.cost = cost_text(self.choice.detectors)
        self.costs = Costs(self.clock, than)
        precision, on_device = str(self.trainer.precision), self.datamodule.decode_on_device
        self.verification = Verification(self.module, precision, decode_on_device=on_device, match=match)
        self.resumed = Resumed()
        self.statistics = Statistics()
        self.fitting_done = self.is_fitted = False
        self.group: Group = None
        self.skipped: list[tuple[str, str]] = []
        self.streams: tuple[Stream, ...] = ()
        """All streams of the results."""
        self.reading: tuple[Stream, ...] = ()
        """Streams still to be read; a resumed run has read some already."""
        self.rows: dict[str, Any] = {}  # by data set of the results, in their order
        self.bank = ""  # where large banks are kept, as text
        self.num_fitted = 0
        """Number of training rows of all processes."""
        self.results: Any = None

    def key(self, streams: Sequence[Stream]) -> dict[str, Any]:
        """Everything that the scores depend on."""
        return run_key(self.choice, self.datamodule, self.trainer, streams)

    @property
    def detectors(self) -> dict[str, Detector]:
        """Applicable detectors, by name."""
        return self.choice.detectors

    @property
    def train_name(self) -> str:
        """Name of the training streams in results."""
        return train_name(self.streams)

    @property
    def prediction_bytes(self) -> int:
        """Memory for logits and features of all rows of this process."""
        images = sum(len(stream) for stream in self.streams)
        facts = self.choice.facts
        return -(-images // self.trainer.world_size) * 4 * (facts.width + facts.num_classes)

    def begin(self) -> None:
        """Restore the progress of an earlier start of this run, and allocate memory for statistics and rows.

        Raises:
            RunIsCompleteError: The folder holds the results of this run.
            InvalidArgumentError: The processes of the run were given different data or detectors.
            RequirementError: There are too few training rows, or too little memory.
        """
        check_same_run(cpu_group(), self.datamodule.planned_streams, self.detectors)
        if self.output is not None:
            self._resume(self.output)
        self.scoring = Scoring(self.detectors, strict=self.options.strict, clock=self.clock)
        self.streams, self.reading = self.datamodule.planned_streams, self.datamodule.active_streams
        self.rows = self.make_rows()
        self.scoring.restore(self.resumed.failed, self.resumed.float64)
        if self.resumed.time is not None:
            self.clock.restore(self.resumed.time)
        self.costs.expect([len(s) for s in self.reading if s.role is not Role.TRAIN], self.trainer.world_size)
        for name, kept in self.resumed.rows.items():
            if name in self.rows:
                self.rows[name].restore(kept.state["rows"])
            self._restore(kept.state)
        if not self.resumed.has_fit and any(stream.role is Role.TRAIN for stream in self.streams):
            check_train_size(self.choice.to_fit, self.choice.facts.num_train)
            self.statistics = self.make_statistics()
            if self.resumed.training is not None:
                self.statistics.restore(self.resumed.training.state)
                self._restore(self.resumed.training.state)

    def _resume(self, output: OutputFolder) -> None:
        """Restore the progress of an earlier start of this run, and plan the remaining run."""
        streams, trainer = self.datamodule.planned_streams, self.trainer
        output.progress = progress = Progress(
            output.path,
            key=self.key(streams),
            cut=cut_of(trainer, self.datamodule),
            process=trainer.global_rank,
            every_s=self.options.keep_every_s,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnfinishedRunWarning)  # of this run, which resumes
            is_over = self.options.resume and is_complete(output.path) and self.is_of(output.path, progress.digest)
        before = output.path / TABLE if is_over else progress.folder / RUN
        written = before.stat().st_mtime if before.is_file() else math.inf
        if is_over:
            warn_of_changed_files(streams, written, "if images were replaced, pass resume=False (or --again)")
            raise RunIsCompleteError(
                f"{output.path}: this run is already complete; load the results with {self.loader}.load, or repeat the"
                " run with resume=False (on the command line: --again)"
            )
        group = cpu_group()
        kept = progress.start(group, resume=self.options.resume)
        if kept:
            warn_of_changed_files(streams, written, "if images were replaced, pass resume=False (or --again)")
        within = trainer.limit_predict_batches == 1.0  # else the limit counts from where the run resumes
        assert self.plan is not None
        self.resumed, self.choice, self.plan = resume(
            kept, self.choice, self.plan, streams, output, group, within=within
        )
        if self.resumed.has_fit:
            self.start.earlier.origin = self.choice.earlier
        if self.options.resume:  # on all processes, whatever each of them has kept
            self.position = position_text(self.resumed, streams, self.datamodule.batch_size, group)
        if self.resumed.text:
            text = "; ".join(filter(None, (self.resumed.text, self.position)))
            pl.utilities.rank_zero_info(f"oodlit: resuming after {text}")

    def _restore(self, state: dict[str, Any]) -> None:
        self.skipped += map(tuple, state["skipped"])
        self.verification.restore(state.get("deviations", {}))
        self.restore_more(state)

    def check(self, batch: Any, index: int) -> None:
        """Begin to measure the time of the backbone."""
        self.clock.enter("backbone", images=len(batch["image"]))

    def take(self, outputs: Any, batch: Any, index: int, *, is_last: bool) -> None:
        """Record one batch of stream number `index`; `is_last` marks the last batch of this process."""
        self.clock.enter(OTHER)
        stream = self.reading[index]
        is_test = stream.role is not Role.TRAIN
        self.skipped += batch.get("skipped", [])
        self.clock.read(batch.get("seconds", {}))
        if len(outputs):
            self.verification.check_logits(outputs, batch)
        if is_test:
            self.take_test(outputs, batch, stream)
        else:
            self.take_training(outputs, stream)
        self.resumed.count(stream.name)
        # The statistics may be large, and the fit, which is kept, is near when the last training image is in.
        if self.output is not None and ((is_last and is_test) or self.output.progress.is_due()):
            self._keep_progress(self.output.progress, stream, is_last=is_last)
        if is_last and not is_test and self.reading[index + 1].role is not Role.TRAIN:
            self.finish_fit()  # not later: the fit is kept before anything can happen to a test image
        if is_last:
            self.close_streams(self.reading[: index + 1])
        if is_test:
            self.costs.count(len(batch["image"]), len(outputs))
            self.cost = self.costs.text() or self.cost

    def add(self, dataset: str, found: Any, scores: Mapping[str, Tensor], outputs: Outputs | None) -> None:
        """Keep scored rows of a data set; a detector that returned NaN is skipped."""
        for name, error in self.rows[dataset].add(found, scores).items():
            self.scoring.leave_out(name, error, dataset, outputs)

    def _keep_progress(self, progress: Progress, stream: Stream, *, is_last: bool) -> None:
        """Save the progress of this process, so that an interrupted run can resume here."""
        done = self.resumed.done[stream.name]
        if stream.role is not Role.TRAIN:
            progress.keep(stream.name, Kept(done, is_last, self._state(stream.name)))
        elif self.statistics.can_be_saved:
            batches = {s.name: self.resumed.done.get(s.name, 0) for s in self.streams if s.role is Role.TRAIN}
            state = {**self.statistics.state(), "batches": batches, "skipped": self.skipped, **self._common_state()}
            progress.keep(TRAINING, Kept(done, is_last, state))

    def _state(self, dataset: str) -> dict[str, Any]:
        return {
            "rows": self.rows[dataset].state() if dataset in self.rows else None,
            "skipped": [(key, reason) for key, reason in self.skipped if key.startswith(f"{dataset}/")],
            "failed": self.scoring.failed,
            "float64": sorted(self.scoring.float64),
            **self._common_state(),
        }

    def _common_state(self) -> dict[str, Any]:
        return {**self.more_state(), "deviations": self.verification.state(), "time": self.clock.state()}

    def finish_fit(self) -> None:
        """The first point where all processes meet: join the statistics and fit."""
        if self.fitting_done:
            return
        self.fitting_done = True
        self.clock.enter("waiting for processes")
        self.group = cpu_group()
        if self.resumed.has_fit:
            self.is_fitted = True
            self._place_large()
            if self.output is not None:
                self.output.resume(self.datasets(), self.resumed.over)
            return
        train = [stream for stream in self.streams if stream.role is Role.TRAIN]
        for stream in train:
            check_complete(stream, self.group)
        synchronize(self.statistics.values(), self.group)
        self.num_fitted = self.check_fit_rows()
        self.clock.enter(OTHER)
        head = None if self.choice.facts.head_problem else self.module.head
        for name in self.detectors:
            if name not in self.choice.kept:
                self.scoring.fit(name, self.statistics, head)
        self.is_fitted = True
        self._place_large()
        if self.output is not None:
            fitted = {name: self.detectors[name] for name in self.scoring.active}
            origin = self.choice.earlier if self.choice.kept and self.choice.earlier else self.origin
            self.output.begin(self.record(), self.datasets(), fitted, origin, self.group)
        self.after_fit()
        if self.output is not None and train:
            self.output.progress.keep(self.train_name, Kept(0, True, self._state(self.train_name)))
            self.output.progress.drop(TRAINING)
        self.close_streams(train)

    @property
    def origin(self) -> FitOrigin:
        """The backbone that fits of this run belong to."""
        facts = self.choice.facts
        return FitOrigin(self.choice.fingerprint, facts.width, facts.num_classes, self.num_fitted)

    def _place_large(self) -> None:
        """Copy banks to the device of this run once, if there is enough memory."""
        fitted = {name: self.detectors[name] for name in self.scoring.active}
        if text := place_large(fitted, self.module.device):
            pl.utilities.rank_zero_info(f"oodlit: {text}")
            self.bank = "; ".join(filter(None, (self.bank, text)))

    def _note_end(self) -> None:
        origin = self.origin if self.is_fitted else None
        self.start.earlier.note_end(self.choice.to_fit, origin, keeps=bool(self.choice.kept), begun=self.fitting_done)

    def finish(self) -> None:
        """The second point where all processes meet: join the rows and evaluate."""
        self.finish_fit()
        self.close_streams(self.streams)
        self.clock.enter("waiting for processes")
        for stream in (s for s in self.reading if s.role is not Role.TRAIN):
            check_complete(stream, self.group)
        for failed in gather_objects(self.group, self.scoring.failed):
            self.scoring.failed |= failed
        if not self.scoring.active:
            raise self.scoring.first_error or DataError(
                "every detector failed on at least one process; see the messages above"
            )
        self.skipped = sorted({pair for part in gather_objects(self.group, self.skipped) for pair in part})
        self.verification.join(self.group)
        self.results = self.evaluate()
        self._note_end()

    def measured(self) -> tuple[dict[str, float], TimeRecord]:
        """Milliseconds per row of each detector and the time record, once the metrics are computed."""
        self.clock.enter(OTHER)
        times = gather_objects(self.group, self.clock.state(wait=True))
        return ms_per_image(times), time_record(times)

    def publish(self) -> None:
        """Write results, fit and page, log them, and finally warn about findings, since warnings can be errors."""
        if not self.trainer.is_global_zero:
            return
        # What cost the most comes first: a picture or a logger that fails loses none of the numbers.
        not_drawn: Exception | None = None
        if self.output is not None:
            fitted = {name: self.detectors[name] for name in self.results.detectors}
            not_drawn = self.output.finish(self.write, self.draw, fitted, self.start.earlier.origin)
        try:
            if self.trainer.loggers:
                log_to_all(self.trainer.loggers, self.run_log(), self.start.owner)
        finally:
            if not_drawn is not None:
                raise not_drawn
        warn_of_skipped(self.skipped)
        for finding in (found for found in self.findings() if found.kind not in REPORTED_EARLIER):
            warn(finding.text, FindingWarning)

    def draw(self, folder: Path) -> None:
        """Draw pictures and the page into a folder."""
        self.start.draw(self.results, self.datamodule, folder)

    def stop(self, error: BaseException) -> str:
        """Discard an interrupted fit; return what is kept, as text."""
        self._note_end()
        kept = None if self.output is None else self.output.kept
        return "" if kept is None else self.where(kept)

    def where(self, kept: Path) -> str:
        """Describe how to continue with the folder of an interrupted run."""
        return (
            f"the progress of the run is kept in {kept}; read finished data sets with {self.loader}.load, or resume the"
            " run with resume=True (on the command line: rerun the command)"
        )

    def with_common(self, record: R) -> R:
        """A record with the fields that every kind of run has."""
        failed = self.scoring.failed
        findings = [
            *self.choice.findings,
            *(Finding("failed", f"the results do not contain detector {n!r}: it {why}") for n, why in failed.items()),
        ]
        return structs.replace(
            record,
            key="" if self.output is None else self.output.progress.digest,
            started_in="" if self.output is None else working_folder(self.output.path),
            fit_digest="" if self.output is None else self.output.fit,
            resumed=self.resumed.text,
            bank=self.bank,
            not_applicable=self.choice.not_applicable | failed,
            acceleration=self.verification.record,
            fit_notes={name: list(d.notes) for name, d in self.detectors.items() if d.notes},
            findings=findings,
            skipped=[SkippedImage(key, reason) for key, reason in self.skipped],
        )
