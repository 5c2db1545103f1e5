"""OODDetection: fit, score and evaluate detectors within one `trainer.predict`."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from oodlit.callbacks.checks import (
    check_alone,
    check_packages,
    predictions_bytes,
    select_detectors,
    take_facts,
)
from oodlit.callbacks.loggers import log_to_all
from oodlit.callbacks.run import Run
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import Detector, FitOrigin, load, save
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.results import Results, Settings
from oodlit.results.storage import UNEVALUATED, check_replaceable

__all__ = ["OODDetection"]

SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
MANY_BYTES = 1_000_000_000
"""Outputs kept by `trainer.predict(return_predictions=True)` beyond which there is a warning."""


class OODDetection(pl.Callback):
    """Fit detectors on the train stream, score every other stream, evaluate at the end; one forward pass per image.

    Before the first batch a probe of two ID images goes through the backbone: it tells which detectors apply.
    Hooks used: setup, on_predict_batch_start, on_predict_batch_end, on_predict_end, teardown, on_exception.
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

    Attributes:
        results: The `Results` of the last run, on every process of the run. Processes that a notebook starts take it
            with them; read `output_dir` there.

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
    ) -> None:
        """Name the detectors; nothing else happens before the run."""
        super().__init__()
        if (detectors is None) == (fitted is None):
            raise InvalidArgumentError("OODDetection: give either detectors=[...] or fitted=FOLDER of an earlier fit")
        _check_several(detectors)
        if num_thumbnails < 0:
            raise InvalidArgumentError(f"num_thumbnails={num_thumbnails}; at least 0 is needed, 0 for none")
        self._origin: FitOrigin | None = None
        self._saved_fit = None if fitted is None else Path(fitted).absolute()
        if fitted is not None:
            self.detectors, self._origin = load(fitted)
        else:
            assert detectors is not None  # checked above
            self.detectors = name_detectors(detectors)
        # Absolute at once: a change of the working directory during the run must not move the results.
        self.output_dir = None if output_dir is None else Path(output_dir).expanduser().absolute()
        self.strict = strict
        self.train_thresholds = train_thresholds
        self.evaluation = Settings(tpr=tpr, rule=rule, unit_test_limit=unit_test_limit)
        self.num_thumbnails = num_thumbnails
        self.results: Results | None = None
        self._run: Run | None = None
        self._borrowed: _Borrowed | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch."""
        if stage != "predict":
            return
        trainer, module, datamodule = check_packages(
            "OODDetection", trainer, pl_module, getattr(trainer, "datamodule", None)
        )
        check_alone(self, trainer)
        _check_strategy(trainer.strategy)
        self._borrowed = _Borrowed(module, datamodule)
        facts, images = take_facts(module, datamodule)
        applicable = select_detectors(self.detectors, facts, strict=self.strict)
        for name, reason in applicable.not_applicable.items():
            warnings.warn(f"detector {name!r} is left out: it {reason}", stacklevel=2)
        # Detectors are fitted anew wherever that is possible: a fit belongs to one backbone.
        kept = {n for n, d in applicable.detectors.items() if self._keeps_fit(d, has_train=facts.num_train > 0)}
        if kept and self._origin is not None:
            source = "what was fitted in an earlier run" if self._saved_fit is None else "the saved fit"
            self._origin.check(FitOrigin(module.fingerprint, facts.width, facts.num_classes), source=source)
        for name in kept:  # fitted in a run of another callback
            fingerprint = self.detectors[name].fitted_on
            FitOrigin(fingerprint).check(FitOrigin(module.fingerprint), source=f"detector {name!r}")
        if self.output_dir is not None:
            check_replaceable(self.output_dir, keep=self._saved_fit)
            _make_folder(self.output_dir)
        elif "MultiProcessing" in type(trainer.strategy.launcher).__name__:
            raise InvalidArgumentError(
                "the strategy starts processes whose memory is gone when they end (ddp_spawn, ddp_fork, ddp_notebook):"
                " give OODDetection an output_dir, and read the results with Results.load"
            )
        self.results = None
        self._run = Run(
            trainer, module, datamodule, facts, images, applicable.detectors, applicable.not_applicable, frozenset(kept)
        )
        self._run.prepare(train_thresholds=self.train_thresholds)
        if trainer.predict_loop.return_predictions:
            kept_bytes = predictions_bytes(datamodule, facts, processes=trainer.world_size)
            if kept_bytes > MANY_BYTES:
                warnings.warn(
                    f"trainer.predict keeps the outputs of all images, {kept_bytes / 1e9:.1f} GB per process;"
                    " pass return_predictions=False, the results need none of them",
                    stacklevel=2,
                )

    def _keeps_fit(self, detector: Detector, *, has_train: bool) -> bool:
        if self._saved_fit is not None:
            return True
        return bool(detector.required_statistics) and detector.is_fitted and not has_train

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See that the images are of the kind that the probe was made with."""
        self._current().check(batch, dataloader_idx)

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
        if not isinstance(outputs, Outputs):
            raise InvalidArgumentError(
                f"predict_step of {type(pl_module).__name__} gave a {type(outputs).__name__}; OODDetection needs the"
                " Outputs that OODModule.predict_step returns"
            )
        self._current().take(outputs, batch, dataloader_idx)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Drop the state of the broken run; module and data module are as before it."""
        run, self._run = self._run, None
        if run is not None and run.is_fitted:
            self._remember_origin(run)
        elif (
            run is not None and run.fitting_done
        ):  # broken within the fit: some are of this run, some of an earlier one
            for detector in run.to_fit:
                detector._fitted = False
            self._origin = None
        self._give_back()

    def _current(self) -> Run:
        assert self._run is not None, "setup runs first"
        return self._run

    def _remember_origin(self, run: Run) -> None:
        for detector in run.to_fit:
            detector.fitted_on = run.fingerprint
        if not run.kept:
            self._origin = run.origin

    def _give_back(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.give_back()

    def _finish(self) -> None:
        if self._run is None:
            return
        run = self._run
        self.results = run.finish(self.evaluation, rescue=self.output_dir)
        if self._saved_fit is not None:
            self.results.run["fitted_from"] = str(self._saved_fit)
        self._remember_origin(run)
        self._run = None
        if run.trainer.is_global_zero:
            # What cost the most comes first: a picture or a logger that fails loses none of the numbers.
            if self.output_dir is not None:
                self._save(run, self.results, self.output_dir)
            try:
                log_to_all(run.trainer.loggers, self.results.metrics_by_name())
            finally:
                if self.output_dir is not None:
                    self._draw(run, self.results, self.output_dir)
        self._give_back()

    def _save(self, run: Run, results: Results, folder: Path) -> None:
        self._clear(folder)
        results.save(folder)
        if self._saved_fit is None:
            save(run.detectors, folder / "fitted", self._origin)

    def _draw(self, run: Run, results: Results, folder: Path) -> None:
        from oodlit.report import save_thumbnails, write_report  # noqa: PLC0415  # drawing is only needed here

        if self.num_thumbnails > 0:
            save_thumbnails(results, folder, run.datamodule.read_images, per_detector=self.num_thumbnails)
        write_report(results, folder / "report.html")

    def _clear(self, folder: Path) -> None:
        """Remove what an earlier run left beside its results and this one may not replace."""
        from oodlit.report import clear_thumbnails  # noqa: PLC0415

        clear_thumbnails(folder)
        if (folder / "fitted") != self._saved_fit:
            for name in ("detectors.json", "detectors.safetensors"):
                (folder / "fitted" / name).unlink(missing_ok=True)
        (folder / UNEVALUATED).unlink(missing_ok=True)

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"OODDetection({', '.join(self.detectors)})"


class _Borrowed:
    """What a run sets in module and data module, and gives back when it ends.

    Both have the transform that is used: that of the data module, or the backbone's own where it has none. The next
    backbone on the same data must not find the transform of this one.
    """

    def __init__(self, module: OODModule, datamodule: OODDataModule) -> None:
        self.module, self.datamodule = module, datamodule
        self.before = module.transform, datamodule.transform, datamodule.use_train
        used = module.transform if datamodule.transform is None else datamodule.transform
        self._set(used, used)

    def give_back(self) -> None:
        """As before the run."""
        module_transform, data_transform, self.datamodule.use_train = self.before
        self._set(module_transform, data_transform)

    def _set(self, module_transform: Any, data_transform: Any) -> None:
        self.module.use_transform(module_transform)
        self.datamodule.transform = data_transform
        self.module.give, self.module.hidden_layers = frozenset(), ()


def _check_several(detectors: object) -> None:
    if isinstance(detectors, Detector | str):
        raise InvalidArgumentError(f"OODDetection: detectors={detectors!r}; a list of detectors is needed")


def _check_strategy(strategy: object) -> None:
    """Refuse strategies that cut the weights into parts: no process would see the head, or the weights to tell by."""
    if isinstance(strategy, SHARDED):
        raise InvalidArgumentError(
            f"strategy {type(strategy).__name__} shards the weights; OODDetection needs the whole network in every"
            " process - use strategy='ddp', or 'auto' with one device"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"output_dir={str(folder)!r}: results cannot be written there ({error}); name a folder that can be written"
        ) from error
