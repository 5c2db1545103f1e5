"""ObjectDetection: fit, score and evaluate OOD detectors on predicted boxes, in one `trainer.predict`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from oodlit._lightning import pl
from oodlit.base.checks import check_choice
from oodlit.base.errors import InvalidArgumentError
from oodlit.callbacks.with_detectors import WithDetectors
from oodlit.detectors.contract.fitting import GivenDetectors
from oodlit.objects.fit_rows import FitOn
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.results.results import ObjectResults
from oodlit.report import save_pictures, write_report
from oodlit.runs.boxes.recorder import BOXES, BoxRecorder, BoxSettings, probe_boxes
from oodlit.runs.choice import Probe
from oodlit.runs.record import Record
from oodlit.runs.start import Options, Start

__all__ = ["ObjectDetection"]


class ObjectDetection(WithDetectors):
    """Fit detectors on boxes of the train stream, and score the boxes of all other streams; one forward pass per image.

    The detectors are those for images: a box is a row. Collectives: one exchange when the fit ends, one at the end.

    Args:
        detectors: OOD detectors or their names, or a mapping of names in the results to them.
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
        resume: True resumes an interrupted run from what it last wrote to `output_dir`; see `OODDetection`. The boxes,
            t*, `fit_on` and the annotations must be the same as well.
        keep_every_s: Least time between two writings of the progress, in seconds; see `OODDetection`. Default 60.

    Attributes:
        results: The `ObjectResults` of the last run, on every process.
        plan: What a run in progress asks of its module and data module; None before and after.
        cost: Cost of detectors that are slower than the network, measured on the first batches; see `OODDetection`.

    Raises:
        InvalidArgumentError: No detector, two of one name, or neither `detectors` nor `fitted`.

    Example:
        >>> from oodlit.detectors import MSP, Mahalanobis
        >>> ObjectDetection([MSP(), Mahalanobis()])
        ObjectDetection(msp, mahalanobis)
    """

    def __init__(
        self,
        detectors: GivenDetectors | None = None,
        *,
        fitted: str | Path | None = None,
        output_dir: str | Path | None = None,
        settings: ObjectSettings | None = None,
        t_star_rule: Literal["given", "f1"] = "given",
        fit_on: FitOn = "predicted",
        strict: bool = False,
        record: Record = dict,
        resume: bool = False,
        keep_every_s: float = 60.0,
    ) -> None:
        super().__init__(BOXES, detectors, fitted, Options(output_dir, strict, record, resume, keep_every_s))
        check_choice("ObjectDetection", "fit_on", fit_on, get_args(FitOn))
        check_choice("ObjectDetection", "t_star_rule", t_star_rule, ("given", "f1"))
        self.settings = ObjectSettings(t_star=0.5) if settings is None else settings
        self.t_star_rule, self.fit_on = t_star_rule, fit_on

    results: ObjectResults | None
    recorder_type = BoxRecorder

    def probe(self, trainer: pl.Trainer, module: Any, datamodule: Any, layers: Sequence[str]) -> Probe:
        """Examine the outputs of the network for the first ID images."""
        if self.settings.t_star < module.min_confidence:
            raise InvalidArgumentError(
                f"ObjectDetection: expected t_star to be at least {module.min_confidence:g}, the min_confidence of the"
                f" ObjectModule, got {self.settings.t_star:g}; raise t_star, or lower ObjectModule(min_confidence=...)"
            )
        probe = probe_boxes(module, datamodule, layers=layers)
        return probe._replace(facts=replace(probe.facts, predicted_labels=self.fit_on == "predicted"))

    def record_run(self, start: Start) -> BoxRecorder:
        """Create the recorder of boxes."""
        return BoxRecorder(start, BoxSettings(self.settings, self.t_star_rule, self.fit_on))

    def draw(self, results: ObjectResults, datamodule: Any, folder: Path) -> None:
        """Draw pictures of boxes and the page."""
        save_pictures(results, folder, datamodule.read_images)
        write_report(results, folder / "report.html")
