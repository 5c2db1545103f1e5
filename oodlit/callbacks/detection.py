"""OODDetection: fit, score and evaluate detectors within one `trainer.predict`."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from oodlit.callbacks.preparation import check_packages, select_detectors, take_facts
from oodlit.callbacks.run import Run
from oodlit.detectors import Detector, FitOrigin, load, save
from oodlit.detectors.fitting import name_detectors
from oodlit.errors import InvalidArgumentError
from oodlit.results import Results, Settings

__all__ = ["OODDetection"]


class OODDetection(pl.Callback):
    """Fit detectors on the train stream, score every other stream, evaluate at the end; one forward pass per image.

    Before the first batch a probe of two ID images goes through the backbone: it tells which detectors apply.
    Hooks used: setup, on_predict_batch_end, on_predict_end, teardown, on_exception.
    Collectives: one exchange when the fit ends, one when the run ends.

    Args:
        detectors: Detectors, or a mapping of names to detectors.
        fitted: Folder with fitted detectors (written by an earlier run, or by `oodlit.detectors.save`), in place of
            `detectors`; their backbone must be this one.
        output_dir: Folder for results, per-image scores, fitted detectors, thumbnails and the HTML page. None (default)
            keeps the results in memory.
        strict: True stops the run if a detector does not apply; False (default) leaves it out and reports the reason.
        train_thresholds: True passes over the training images for the thresholds of the detection error rate even
            if no detector has to be fitted. By default they are taken whenever the pass is made anyway.
        tpr: Share of ID images to accept, 0 < tpr <= 1; default 0.95.
        rule: "attained" (default) or "interpolated"; how the threshold is taken (see `oodlit.metrics.fpr_at_tpr`).
        unit_test_limit: FPR above which a unit test has failed; default 0.10.
        num_thumbnails: Accepted OOD images kept per detector for the report; default 12.

    Attributes:
        results: The `Results` of the last run, on every process.

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
        self._origin: FitOrigin | None = None
        self._is_saved_fit = fitted is not None
        if fitted is not None:
            self.detectors, self._origin = load(fitted)
        else:
            assert detectors is not None  # checked above
            self.detectors = name_detectors(detectors)
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.strict = strict
        self.train_thresholds = train_thresholds
        self.evaluation = Settings(tpr=tpr, rule=rule, unit_test_limit=unit_test_limit)
        self.num_thumbnails = num_thumbnails
        self.results: Results | None = None
        self._run: Run | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch."""
        if stage != "predict":
            return
        trainer, module, datamodule = check_packages(
            "OODDetection", trainer, pl_module, getattr(trainer, "datamodule", None)
        )
        if datamodule.transform is None:
            datamodule.transform = module.transform
        module.give, module.hidden_layers = frozenset(), ()
        facts = take_facts(module, datamodule)
        applicable = select_detectors(self.detectors, facts, strict=self.strict)
        for name, reason in applicable.not_applicable.items():
            warnings.warn(f"detector {name!r} is left out: it {reason}", stacklevel=2)
        # Detectors are fitted anew wherever there are training images: a fit belongs to one backbone.
        keeps_fit = self._is_saved_fit or facts.num_train == 0
        if keeps_fit and self._origin is not None:
            source = "the saved fit" if self._is_saved_fit else "what was fitted in an earlier run"
            self._origin.check(FitOrigin(module.fingerprint, facts.width, facts.num_classes), source=source)
        if self.output_dir is not None:
            _make_folder(self.output_dir)
        self.results = None
        self._run = Run(trainer, module, datamodule, facts, applicable.detectors, applicable.not_applicable)
        self._run.prepare(train_thresholds=self.train_thresholds, keeps_fit=keeps_fit)

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
        self._current().take(outputs, batch, dataloader_idx)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Drop the state of the broken run."""
        self._run = None

    def _current(self) -> Run:
        assert self._run is not None, "setup runs first"
        return self._run

    def _finish(self) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        self.results = run.finish(self.evaluation, rescue=self.output_dir)
        if run.to_fit:
            self._origin = run.origin
        run.module.give, run.module.hidden_layers = frozenset(), ()
        if run.trainer.is_global_zero:
            if self.output_dir is not None:
                self._write(run, self.results, self.output_dir)
            values = self.results.metrics_by_name()
            for logger in run.trainer.loggers:
                logger.log_metrics(values, step=0)
                logger.save()

    def _write(self, run: Run, results: Results, folder: Path) -> None:
        from oodlit.report import save_thumbnails, write_report  # noqa: PLC0415  # drawing is only needed here

        results.save(folder)
        if run.to_fit:
            save(run.detectors, folder / "fitted", run.origin)
        if self.num_thumbnails > 0:
            save_thumbnails(results, folder, run.datamodule.read_images, per_detector=self.num_thumbnails)
        write_report(results, folder / "report.html")

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"OODDetection({', '.join(self.detectors)})"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"output_dir={str(folder)!r}: results cannot be written there ({error}); name a folder that can be written"
        ) from error
