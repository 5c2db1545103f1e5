"""ObjectDetection: fit, score and evaluate OOD detectors on predicted boxes, in one `trainer.predict`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec import structs
from PIL import Image

from oodlit._lightning import pl, warn_of_two
from oodlit.base import peers
from oodlit.base.atomic import remove
from oodlit.base.plan import RunPlan
from oodlit.base.termination import end_on_sigterm, is_default, say_where
from oodlit.detectors import Detector, FitOrigin, load, save
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.errors import InvalidArgumentError
from oodlit.objects.benchmark import ObjectBenchmark
from oodlit.objects.detections import Detections
from oodlit.objects.fit_rows import FitOn
from oodlit.objects.from_files import f1_confidence
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.module import ObjectModule
from oodlit.objects.results.results import ObjectResults
from oodlit.report import save_pictures, write_object_report
from oodlit.results import FindingWarning
from oodlit.results.files.score_table import check_detector_names
from oodlit.results.files.storage import UNFINISHED, check_replaceable
from oodlit.results.names import metric_names
from oodlit.roles import Role
from oodlit.runs.boxes.state import ObjectRun, choose
from oodlit.runs.checks import check_alone, check_is_list, check_strategy
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.runs.folder import FITTED, check_writable, hold
from oodlit.runs.loggers import RunLog, log_to_all, settings_of
from oodlit.runs.record import Record

__all__ = ["ObjectDetection"]

ReadImages = Callable[[list[str]], Mapping[str, Image.Image]]


class ObjectDetection(pl.Callback):
    """Fit detectors on the boxes of the train stream, score those of every other stream; one pass per image.

    The detectors are those for images: a box is a row. Collectives: one exchange when the fit ends, one at the end.

    Args:
        detectors: OOD detectors, or a mapping of names to them.
        fitted: Folder with fitted detectors, in place of `detectors`; their network must be this one.
        output_dir: Folder for results, fitted detectors and the page; those of an earlier run are replaced. None
            (default) keeps the results in memory.
        settings: How metrics are computed. Its t* is also the least confidence of the boxes that detectors are fitted
            on. None (default) = t* 0.5, everything else as `ObjectSettings` has it.
        t_star_rule: "given" (default): metrics count boxes from the t* of `settings` on, as the fit does; "f1": from
            the confidence of the best F1 on the ID set on, which is known when the run has ended.
        fit_on: "predicted" (default): all boxes of training images from t* on, with their predicted class; "matched":
            only those that hit an object of this class.
        strict: True stops the run if a detector does not apply; False (default) leaves it out and reports the reason.
        record: Gives further entries of `results.run`; called once, when all boxes are scored.

    Attributes:
        results: The `ObjectResults` of the last run, on every process.
        plan: What a run that is going on asks of its module and data module; None before and after.

    Raises:
        InvalidArgumentError: No detector, two of one name, or neither `detectors` nor `fitted`.

    Example:
        >>> from oodlit.detectors import MSP, Mahalanobis
        >>> ObjectDetection([MSP(), Mahalanobis()])
        ObjectDetection(msp, mahalanobis)
    """

    def __init__(
        self,
        detectors: Sequence[Detector] | Mapping[str, Detector] | None = None,
        *,
        fitted: str | Path | None = None,
        output_dir: str | Path | None = None,
        settings: ObjectSettings | None = None,
        t_star_rule: Literal["given", "f1"] = "given",
        fit_on: FitOn = "predicted",
        strict: bool = False,
        record: Record = dict,
    ) -> None:
        super().__init__()
        warn_of_two()
        if (detectors is None) == (fitted is None):
            raise InvalidArgumentError("ObjectDetection: give either detectors=[...] or fitted=FOLDER of a fit")
        for name, value, allowed in (
            ("fit_on", fit_on, ("predicted", "matched")),
            ("t_star_rule", t_star_rule, ("given", "f1")),
        ):
            if value not in allowed:
                raise InvalidArgumentError(f"ObjectDetection: {name}={value!r}; one of {', '.join(allowed)} is needed")
        check_is_list(detectors)
        self._earlier = EarlierFit()
        if fitted is not None:
            self.detectors, origin = load(fitted)
            self._earlier = EarlierFit(Path(fitted).absolute(), origin)
        else:
            assert detectors is not None  # checked above
            self.detectors = name_detectors(detectors)
        check_detector_names(self.detectors)
        self.output_dir = None if output_dir is None else Path(output_dir).expanduser().absolute()
        self.settings = ObjectSettings(t_star=0.5) if settings is None else settings
        self.t_star_rule, self.fit_on, self.strict = t_star_rule, fit_on, strict
        self.results: ObjectResults | None = None
        self.plan: RunPlan | None = None
        self._record = record
        self._run: ObjectRun | None = None
        self._held: ExitStack | None = None
        self._ends_on_sigterm = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch."""
        if stage != "predict":
            return
        peers.watch()
        self._ends_on_sigterm = is_default()
        datamodule = getattr(trainer, "datamodule", None)
        if not isinstance(pl_module, ObjectModule):
            raise InvalidArgumentError(
                f"ObjectDetection runs on an ObjectModule, not on a {type(pl_module).__name__}; wrap the network:"
                " ObjectModule(network)"
            )
        if not isinstance(datamodule, ObjectBenchmark):
            raise InvalidArgumentError(
                f"ObjectDetection needs annotated objects, but got {type(datamodule).__name__}; call"
                " trainer.predict(module, datamodule) with an ObjectBenchmark"
            )
        check_alone(self, trainer)
        check_strategy(trainer.strategy, has_output=self.output_dir is not None)
        if self.settings.t_star < pl_module.min_confidence:
            raise InvalidArgumentError(
                f"ObjectDetection: t_star={self.settings.t_star:g}, but boxes below {pl_module.min_confidence:g} are"
                " not kept; lower ObjectModule(min_confidence=...)"
            )
        if self.output_dir is not None:
            check_replaceable(self.output_dir, keep=self._earlier.folder)
            check_writable(self.output_dir)
            if trainer.is_global_zero:
                self._held = hold(self.output_dir)
        self.results = None
        chosen = choose(trainer, pl_module, datamodule, self.detectors, self._earlier, strict=self.strict)
        self.plan = chosen.plan(train_thresholds=False)
        self._run = ObjectRun(
            trainer,
            pl_module,
            datamodule,
            chosen,
            cut=self.settings.t_star,
            fit_on=self.fit_on,
            strict=self.strict,
            keep_fit=None if self.output_dir is None or self._earlier.folder is not None else self._keep_fit,
        )
        self._run.prepare()

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From here on Lightning would take a signal to end, and let the run go on."""
        if self._ends_on_sigterm:
            end_on_sigterm()

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
        peers.check()
        if not isinstance(outputs, Detections):
            raise InvalidArgumentError(
                f"predict_step of {type(pl_module).__name__} gave a {type(outputs).__name__}; ObjectDetection needs the"
                " Detections that ObjectModule.predict_step returns"
            )
        assert self._run is not None, "setup runs first"
        self._run.take(outputs, batch, dataloader_idx)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish()
        peers.forget()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Tell the other processes, drop the state of the broken run; say where its fit is kept."""
        peers.tell(exception)
        run, self._run, self.plan = self._run, None, None
        if run is not None and run.is_fitted and self._unfinished is not None and (self._unfinished / FITTED).is_dir():
            say_where(exception, f"the fit is kept: ObjectDetection(fitted={str(self._unfinished / FITTED)!r}, ...)")
        self._release()

    def _release(self) -> None:
        """Let other runs write into the folder."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    @property
    def _saved_fit(self) -> Path | None:
        """The fit that the run uses and leaves where it is; one that a broken run kept becomes this run's own."""
        folder = self._earlier.folder
        is_rescued = folder is not None and self._unfinished is not None and self._unfinished in folder.parents
        return None if is_rescued else folder

    @property
    def _unfinished(self) -> Path | None:
        """What is finished while a run goes on."""
        return None if self.output_dir is None else self.output_dir / UNFINISHED

    def _keep_fit(self, detectors: Mapping[str, Detector], origin: FitOrigin | None) -> None:
        """The fit is kept before anything can happen to a test image."""
        assert self._unfinished is not None  # asked for with an output folder
        save(detectors, self._unfinished / FITTED, origin)

    def _finish(self) -> None:
        if self._run is None:
            return
        run = self._run
        sets = run.finish()
        peers.unwatch()
        settings, rule = self.settings, "given"
        if self.t_star_rule == "f1":
            known = next(part for part in sets if part.info.role is Role.ID)
            best = f1_confidence(known.detections, known.annotations)
            # Below the least confidence that is kept there are no boxes: a lower t* would promise them.
            settings = settings.changed(t_star=max(best, run.module.min_confidence))
            rule = "best F1 on the ID set"
        record = structs.replace(run.record(), t_star_rule=rule).with_entries(self._record())
        names = run.datamodule.class_names
        self.results = results = ObjectResults.from_sets(sets, class_names=names, settings=settings, run=record)
        self._earlier.origin = run.origin
        self._run, self.plan = None, None
        for finding in run.choice.findings:
            warnings.warn(finding.text, FindingWarning, stacklevel=2)
        if not run.trainer.is_global_zero:
            return
        failed: list[Exception] = []
        if self.output_dir is not None:
            add = partial(self._add, results, run.datamodule.read_images, failed)
            results.save(self.output_dir, add=add, keep=self._saved_fit)
            if self._saved_fit is None:
                remove(self.output_dir / UNFINISHED)
        self._release()
        values = dict(zip(metric_names(results.table), results.table["value"], strict=True))
        log_to_all(run.trainer.loggers, RunLog(values, settings_of(results.run)))
        if failed:
            raise failed[0]

    def _add(self, results: ObjectResults, read: ReadImages, failed: list[Exception], folder: Path) -> None:
        """What a run leaves beside its results: the fit, and the page, whose failure loses no number."""
        if self._saved_fit is None:
            save({name: self.detectors[name] for name in results.detectors}, folder / FITTED, self._earlier.origin)
        try:
            save_pictures(results, folder, read)
            write_object_report(results, folder / "report.html", folder=folder)
        except Exception as error:  # pictures, decoders and templates fail with types of their own
            for part in ("thumbnails", "report.html"):
                remove(folder / part)
            failed.append(error)

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"ObjectDetection({', '.join(self.detectors)})"
