"""OODDetection: fit, score and evaluate detectors within one `trainer.predict`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from oodlit._lightning import pl
from oodlit.base.checks import check_choice, check_ints
from oodlit.base.roles import Role
from oodlit.callbacks.with_detectors import WithDetectors
from oodlit.datamodules.thinning import MAX_TO_CLASSIFY
from oodlit.detectors.contract.fitting import GivenDetectors
from oodlit.detectors.statistics.feature_bank import Copies
from oodlit.report import save_thumbnails, write_report
from oodlit.results import Results, Settings
from oodlit.results.files.image_features import read_features
from oodlit.runs.choice import Probe, probe
from oodlit.runs.images.recorder import ImageOptions, ImageRecorder
from oodlit.runs.loggers import check_figures
from oodlit.runs.record import Record
from oodlit.runs.run_checks import IMAGES
from oodlit.runs.start import Options, Start


class OODDetection(WithDetectors):
    """Fit detectors on the train stream, score all other streams, and compute metrics; one forward pass per image.

    Before the first batch, two ID images go through the backbone as a probe that shows which detectors apply.
    Collectives: one exchange when the fit ends, one when the run ends.

    Args:
        detectors: Detectors or their names, such as ["KNN", MSP()], or a mapping of names in the results to them.
        fitted: Folder with fitted detectors (written by an earlier run, or by `oodlit.detectors.save`), in place of
            `detectors`; their backbone must be this one.
        output_dir: Folder for results, per-image scores, fitted detectors, thumbnails and the HTML page; those of an
            earlier run are replaced, parts of results without their `run.json` are refused. None (default) keeps the
            results in memory.
        strict: True stops the run if a detector does not apply; False (default) leaves it out and reports the reason.
        train_thresholds: True passes over the training images for the thresholds of the detection error rate even
            if no detector has to be fitted. By default they are taken whenever the pass is made anyway.
        tpr: Share of ID images to accept, 0 < tpr <= 1; default 0.95.
        rule: "attained" or "interpolated"; how the threshold is taken (see `oodlit.metrics.fpr_at_tpr`). None (default)
            = the rule of the data, such as that of a `Benchmark`, or else "attained".
        unit_test_limit: FPR above which a unit test has failed; default 0.10.
        controls: True adds findings about what detectors react to, see `oodlit.results.controls`. Default: False.
        num_thumbnails: Accepted OOD images and rejected ID images kept per detector and set for the report, within a
            limit for all detectors together; default 12, 0 = no pictures and no `explain`.
        explain: Accepted OOD images per set whose nearest training images the report shows; default 6. The images of
            the report, at most 240, go through the network once more, also for a map of the features. 0 = none.
        log_figures: Figures that loggers get which have a place for them (see docs/loggers.md): names of
            `oodlit.results.plots.FIGURES`; True (default) = histograms of scores, FPR per class, unit tests and
            severity curves of every data set that has them, a second or a few each; False = none.
        record: Gives further entries of `results.run` (and of `run.json`); called once, when all images are scored.
        resume: True resumes an interrupted run from the last point that it wrote to `output_dir`. Network, transform,
            data, detectors with their settings and code, and precision must be the same; otherwise the run starts from
            scratch. If the same run is already complete, `RunIsCompleteError` is raised. Default: False.
        keep_every_s: Least time between two writings of the progress, in seconds; default 60. Writing takes at most a
            twentieth of the time. 0 = after every batch.
        bank: Keep one copy of KNN's bank of training images per "process", or per "machine", whose processes share the
            memory. "auto" (default) = per machine, if one copy per process would take more than a twentieth of its
            memory. Scores are the same.

    Attributes:
        results: The `Results` of the last run, on every process of the run. Processes that a notebook starts take it
            with them; read `output_dir` there.
        plan: What a run in progress asks of its module and data module; None before and after.
        cost: Cost of the detectors of the last run, as text: before the start, of those that make extra forward passes;
            after some batches, of those that are slower than the backbone. Empty if there are none.

    Raises:
        InvalidArgumentError: No detector, two of one name, neither `detectors` nor `fitted`, or a number out of range.

    Example:
        >>> from oodlit.detectors import MSP, Mahalanobis
        >>> OODDetection([MSP(), Mahalanobis()])
        OODDetection(msp, mahalanobis)
    """

    def __init__(
        self,
        detectors: GivenDetectors | None = None,
        *,
        fitted: str | Path | None = None,
        output_dir: str | Path | None = None,
        strict: bool = False,
        train_thresholds: bool = False,
        tpr: float = 0.95,
        rule: str | None = None,
        unit_test_limit: float = 0.10,
        controls: bool = False,
        num_thumbnails: int = 12,
        explain: int = 6,
        log_figures: bool | Sequence[str] = True,
        record: Record = dict,
        resume: bool = False,
        keep_every_s: float = 60.0,
        bank: Copies = "auto",
    ) -> None:
        super().__init__(IMAGES, detectors, fitted, Options(output_dir, strict, record, resume, keep_every_s))
        check_ints("OODDetection", num_thumbnails=num_thumbnails, explain=explain, at_least=0)
        check_figures("OODDetection", log_figures)
        check_choice("OODDetection", "bank", bank, get_args(Copies))
        self.train_thresholds = train_thresholds
        self.evaluation = Settings(tpr=tpr, rule=rule or "attained", unit_test_limit=unit_test_limit, controls=controls)
        self.rule = rule
        self.num_thumbnails, self.log_figures, self.bank = num_thumbnails, log_figures, bank
        self.explain = explain if num_thumbnails else 0

    results: Results | None
    recorder_type = ImageRecorder

    def probe(self, trainer: pl.Trainer, module: Any, datamodule: Any, layers: Sequence[str]) -> Probe:
        """Examine the outputs of the backbone for the first ID images."""
        return probe(trainer, module, datamodule, layers=layers)

    def record_run(self, start: Start) -> ImageRecorder:
        """Create the recorder of images."""
        of_data = dict(getattr(start.datamodule, "evaluation", {}))
        if self.rule is not None:
            of_data["rule"] = self.rule
        evaluation = replace(self.evaluation, **of_data)
        options = ImageOptions(evaluation, self.train_thresholds, self.log_figures, self.bank, self.explain)
        return ImageRecorder(start, options)

    def draw(self, results: Results, datamodule: Any, folder: Path) -> None:
        """Draw thumbnails and the page."""
        if self.num_thumbnails > 0:
            # To find images in shards, all headers are read: too slow for the pictures of a few training images.
            is_large = any(len(s) > MAX_TO_CLASSIFY for s in getattr(datamodule, "streams", ()) if s.role is Role.TRAIN)
            features = None if is_large else read_features(folder)
            save_thumbnails(
                results, folder, datamodule.read_images, per_detector=self.num_thumbnails, features=features
            )
        assert self.output_dir is not None
        name = self.output_dir.name
        write_report({name: results}, folder / "report.html", folders={name: folder})
