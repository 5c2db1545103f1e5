"""OODDetection: fit, score and evaluate detectors within one `trainer.predict`."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from oodlit._lightning import pl, warn_of_two
from oodlit.base import peers
from oodlit.base.checks import check_choice, check_int
from oodlit.base.distributed import cpu_group
from oodlit.base.plan import RunPlan
from oodlit.base.termination import end_on_sigterm, is_default, say_where
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import Detector, load
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.detectors.statistics.feature_bank import Copies
from oodlit.errors import InvalidArgumentError, RunIsCompleteError
from oodlit.results import FindingWarning, Results, Settings
from oodlit.results.files.score_table import check_detector_names
from oodlit.results.files.storage import is_complete
from oodlit.runs.checks import (
    check_alone,
    check_is_list,
    check_outputs,
    check_packages,
    check_strategy,
    warn_of_many_predictions,
)
from oodlit.runs.choice import Choice, choose, cost_text
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.runs.folder import OutputFolder
from oodlit.runs.images.state import Run
from oodlit.runs.journal import Progress, run_key
from oodlit.runs.loggers import RunLog, check_figures, figures_of, log_to_all
from oodlit.runs.record import Record
from oodlit.runs.resumed import Resumed, resume
from oodlit.runs.verification import leave_as_it_was
from oodlit.scoring.clock import Clock
from oodlit.scoring.span import OTHER


class OODDetection(pl.Callback):
    """Fit detectors on the train stream, score every other stream, evaluate at the end; one forward pass per image.

    Before the first batch a probe of two ID images goes through the backbone: it tells which detectors apply.
    Hooks used: setup, on_predict_start, on_predict_batch_start, on_predict_batch_end, on_predict_end, teardown,
    on_exception.
    Collectives: one exchange when the fit ends, one when the run ends.

    Args:
        detectors: Detectors, or a mapping of names to detectors.
        fitted: Folder with fitted detectors (written by an earlier run, or by `oodlit.detectors.save`), in place of
            `detectors`; their backbone must be this one.
        output_dir: Folder for results, per-image scores, fitted detectors, thumbnails and the HTML page; those of an
            earlier run are replaced, parts of results without their `run.json` are refused. None (default) keeps the
            results in memory.
        strict: True stops the run if a detector does not apply; False (default) leaves it out and reports the reason.
        train_thresholds: True passes over the training images for the thresholds of the detection error rate even
            if no detector has to be fitted. By default they are taken whenever the pass is made anyway.
        tpr: Share of ID images to accept, 0 < tpr <= 1; default 0.95.
        rule: "attained" (default) or "interpolated"; how the threshold is taken (see `oodlit.metrics.fpr_at_tpr`).
        unit_test_limit: FPR above which a unit test has failed; default 0.10.
        num_thumbnails: Accepted OOD images kept per detector for the report; default 12.
        log_figures: Figures that loggers get which have a place for them (see docs/loggers.md): names of
            `oodlit.results.plots.FIGURES`; True (default) = histograms of scores, FPR per class, unit tests and
            severity curves of every data set that has them, a second or a few each; False = none.
        record: Gives further entries of `results.run` (and of `run.json`); called once, when all images are scored.
        resume: True goes on with a run that was killed, from the last point that it had written to `output_dir`, if it
            is the same: network, transform, data, detectors with their settings and code, precision. Without one it
            starts anew, and raises `RunIsCompleteError` where the same run has come to its end there.
        keep_every_s: Least time between two writings of how far the run has come, in seconds; default 60. Writing
            takes a twentieth of the time at most. 0 = after every batch.
        bank: Where several processes run, what holds a copy of the bank of all training images that KNN reads: every
            "process", every "machine", whose processes share the memory, or "auto" (default): a machine, if copies of
            its processes would take more than a twentieth of its memory. Scores are the same.

    Attributes:
        results: The `Results` of the last run, on every process of the run. Processes that a notebook starts take it
            with them; read `output_dir` there.
        plan: What a run that is going on asks of its module and data module; None before and after.
        cost: What the detectors of the last run cost that ask for further forward passes, before it starts; after some
            batches, the time of those that take longer than the backbone. Empty if there are none.

    Raises:
        InvalidArgumentError: No detector, two of one name, neither `detectors` nor `fitted`, or a number out of range.

    Example:
        >>> from oodlit.detectors import MSP, Mahalanobis
        >>> OODDetection([MSP(), Mahalanobis()])
        OODDetection(msp, mahalanobis)
    """

    def __init__(
        self,
        detectors: Sequence[Detector] | Mapping[str, Detector] | None = None,
        *,
        fitted: str | Path | None = None,
        output_dir: str | Path | None = None,
        strict: bool = False,
        train_thresholds: bool = False,
        tpr: float = 0.95,
        rule: str = "attained",
        unit_test_limit: float = 0.10,
        num_thumbnails: int = 12,
        log_figures: bool | Sequence[str] = True,
        record: Record = dict,
        resume: bool = False,
        keep_every_s: float = 60.0,
        bank: Copies = "auto",
    ) -> None:
        super().__init__()
        warn_of_two()
        if (detectors is None) == (fitted is None):
            raise InvalidArgumentError("OODDetection: give either detectors=[...] or fitted=FOLDER of an earlier fit")
        check_is_list(detectors)
        check_int("OODDetection", "num_thumbnails", num_thumbnails, at_least=0)
        check_figures("OODDetection", log_figures)
        check_choice("OODDetection", "bank", bank, get_args(Copies))
        self._earlier = EarlierFit()
        if fitted is not None:
            self.detectors, origin = load(fitted)
            self._earlier = EarlierFit(Path(fitted).absolute(), origin)
        else:
            assert detectors is not None  # checked above
            self.detectors = name_detectors(detectors)
        check_detector_names(self.detectors)
        # Absolute at once: a change of the working directory during the run must not move the results.
        self.output_dir = None if output_dir is None else Path(output_dir).expanduser().absolute()
        self.strict = strict
        self.train_thresholds = train_thresholds
        self.evaluation = Settings(tpr=tpr, rule=rule, unit_test_limit=unit_test_limit)
        self.num_thumbnails, self.log_figures = num_thumbnails, log_figures
        self.results: Results | None = None
        self.plan: RunPlan | None = None
        self.cost = ""
        self._record = record
        self.resume, self.keep_every_s, self.bank = resume, keep_every_s, bank
        self._run: Run | None = None
        self._output: OutputFolder | None = None
        self._ends_on_sigterm = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch."""
        if stage != "predict":
            return
        peers.watch()
        self._ends_on_sigterm = is_default()
        trainer, module, datamodule = check_packages(
            "OODDetection", trainer, pl_module, getattr(trainer, "datamodule", None)
        )
        clock = Clock(trainer.strategy.root_device)
        check_alone(self, trainer)
        check_strategy(trainer.strategy, has_output=self.output_dir is not None)
        if self.output_dir is not None:
            self._output = OutputFolder(
                self.output_dir,
                settings=self.evaluation,
                process=trainer.global_rank,
                processes=trainer.world_size,
                saved_fit=self._earlier.folder,
            )
        self.results = None
        chosen = choose(trainer, module, datamodule, self.detectors, self._earlier, strict=self.strict)
        plan, self.cost = chosen.plan(train_thresholds=self.train_thresholds), cost_text(chosen.detectors)
        self.plan = replace(plan, asked=clock.wait_for_data)
        resumed = None
        if self._output is not None:
            resumed, chosen, self.plan = self._start(trainer, datamodule, chosen, self.plan, self._output)
        self._run = run = Run(
            trainer,
            module,
            datamodule,
            chosen,
            strict=self.strict,
            output=self._output,
            resumed=resumed,
            bank=self.bank,
            clock=clock,
        )
        run.prepare()
        if trainer.predict_loop.return_predictions:
            warn_of_many_predictions(run.num_images, run.facts, processes=trainer.world_size)

    def _start(
        self,
        trainer: pl.Trainer,
        datamodule: OODDataModule,
        chosen: Choice,
        plan: RunPlan,
        output: OutputFolder,
    ) -> tuple[Resumed, Choice, RunPlan]:
        """Find what an earlier start of this run has left; choice and plan of the rest of it."""
        streams = datamodule.planned_streams
        output.progress = progress = Progress(
            output.path,
            key=run_key(chosen, datamodule, trainer, streams),
            cut={
                "processes": trainer.world_size,
                "num_workers": datamodule.num_workers,
                "batch_size": datamodule.batch_size,
            },
            process=trainer.global_rank,
            every_s=self.keep_every_s,
        )
        if self.resume and is_complete(output.path) and self._is_of(Results.load(output.path), progress.digest):
            raise RunIsCompleteError(
                f"{output.path}: this run has come to its end there; load it by Results.load, or repeat it without"
                " resume=True"
            )
        group = cpu_group()
        kept = progress.start(group, resume=self.resume)
        within = trainer.limit_predict_batches == 1.0  # else the limit counts from where the run goes on
        found, chosen, plan = resume(kept, chosen, plan, streams, output, group, within=within)
        if found.has_fit:
            self._earlier.origin = chosen.earlier
        if found.text:
            pl.utilities.rank_zero_info(f"oodlit: going on after {found.text}")
        return found, chosen, plan

    def _is_of(self, results: Results, key: str) -> bool:
        """Whether results are those of this run: of the same scores, and of the same settings of the metrics."""
        classes = results.settings.classes  # known at the end alone
        return results.run.key == key and results.settings == replace(self.evaluation, classes=classes)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From here on Lightning would take a signal to end, and let the run go on."""
        if self._ends_on_sigterm:
            end_on_sigterm()

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See that the images are of the kind that the probe was made with, and that no other process failed."""
        peers.check()
        run = self._current()
        run.check(batch, dataloader_idx)
        run.clock.enter("backbone", images=len(batch["image"]))

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Feed the statistics, or score."""
        run = self._current()
        run.clock.enter(OTHER)
        outputs = check_outputs("OODDetection", pl_module, outputs)
        is_last = batch_idx + 1 == trainer.num_predict_batches[dataloader_idx]
        run.take(outputs, batch, dataloader_idx, is_last=is_last)
        if cost := run.costs.text():
            self.cost = cost
            pl.utilities.rank_zero_info(f"oodlit: {cost}")

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish()
        peers.forget()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Tell the other processes, drop the state of the broken run and what it fitted if it broke within the fit."""
        peers.tell(exception)
        leave_as_it_was(pl_module)
        run, self._run, self.plan = self._run, None, None
        if run is not None:
            self._earlier.origin = run.origin_after(self._earlier.origin)
            if self._output is not None and (where := self._output.where()):
                say_where(exception, where)
        self._close_output()

    def _current(self) -> Run:
        assert self._run is not None, "setup runs first"
        return self._run

    def _finish(self) -> None:
        if self._run is None:
            return
        run = self._run
        self.results = results = run.finish(self.evaluation, record=self._more_record)
        peers.unwatch()
        self._earlier.origin = run.origin_after(self._earlier.origin)
        self._run = None
        for finding in results.findings:
            if not finding.is_good and finding.kind != "failed":  # of failures the log has told already
                warnings.warn(finding.text, FindingWarning, stacklevel=2)
        if run.trainer.is_global_zero:
            # What cost the most comes first: a picture or a logger that fails loses none of the numbers.
            not_drawn: Exception | None = None
            if self._output is not None:
                read, number = run.datamodule.read_images, self.num_thumbnails
                fitted = {name: run.detectors[name] for name in results.detectors}
                not_drawn = self._output.finish(results, fitted, self._earlier.origin, read, num_thumbnails=number)
            try:
                if run.trainer.loggers:
                    figures = partial(figures_of, results, self.log_figures)
                    log_to_all(run.trainer.loggers, RunLog.of(results, figures))
            finally:
                if not_drawn is not None:
                    raise not_drawn
        self.plan = None
        self._close_output()

    def _close_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def _more_record(self) -> dict[str, Any]:
        folder = self._earlier.folder
        return {**self._record(), **({} if folder is None else {"fitted_from": str(folder)})}

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"OODDetection({', '.join(self.detectors)})"
