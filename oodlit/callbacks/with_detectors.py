"""Base class of the callbacks that fit and score detectors."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oodlit._lightning import pl
from oodlit.base.errors import InvalidArgumentError
from oodlit.detectors import load
from oodlit.detectors.contract.fitting import GivenDetectors, name_detectors
from oodlit.results.files.score_table import check_detector_names
from oodlit.results.files.storage import check_replaceable
from oodlit.runs.choice import Probe, choose, hidden_layers
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.runs.folder import OutputFolder
from oodlit.runs.run_checks import Parts, check_alone, check_strategy
from oodlit.runs.scored import ScoredRun
from oodlit.runs.shell import RunCallback
from oodlit.runs.start import Options, Start
from oodlit.scoring.clock import Clock


class WithDetectors(RunCallback):
    """Base class of callbacks that run detectors, new or from an earlier fit, and write the results to a folder.

    Args:
        parts: Classes of module, data module and outputs.
        detectors: See the subclasses.
        fitted: See the subclasses.
        options: Arguments that all subclasses have.
    """

    results: Any
    recorder_type: type[ScoredRun]

    def __init__(
        self, parts: Parts, detectors: GivenDetectors | None, fitted: str | Path | None, options: Options
    ) -> None:
        super().__init__(parts, options.output_dir)
        owner = type(self).__name__
        if (detectors is None) == (fitted is None):
            raise InvalidArgumentError(f"{owner}: pass either detectors=[...] or fitted=FOLDER of an earlier fit")
        if detectors is not None:
            self.detectors, self._earlier = name_detectors(detectors), EarlierFit()
        else:
            assert fitted is not None  # checked above
            self.detectors, origin = load(fitted)
            self._earlier = EarlierFit(Path(fitted).absolute(), origin)
        check_detector_names(self.detectors)
        self.output_dir = self._folder
        self.options = options
        self.results = None

    @abstractmethod
    def probe(self, trainer: pl.Trainer, module: Any, datamodule: Any, layers: Sequence[str]) -> Probe:
        """Examine the outputs of the network for the first ID images."""

    @abstractmethod
    def record_run(self, start: Start) -> ScoredRun:
        """Make the recorder."""

    @abstractmethod
    def draw(self, results: Any, datamodule: Any, folder: Path) -> None:
        """Draw pictures and the page into a folder."""

    def make_recorder(self, trainer: pl.Trainer, module: Any, datamodule: Any) -> ScoredRun:
        """Check the settings before the first batch, and decide which detectors run."""
        clock, owner = Clock(trainer.strategy.root_device), type(self).__name__
        check_alone(self, trainer)
        folder = self.output_dir
        check_strategy(owner, trainer.strategy, loader="" if folder else self.recorder_type.loader)
        output = None
        if folder is not None:
            check_replaceable(folder, keep=self._earlier.folder)
            self.lock_folder(trainer)
            place = {"process": trainer.global_rank, "processes": trainer.world_size}
            output = OutputFolder(folder, **place, saved_fit=self._earlier.folder, fit=self._earlier.digest({}))
        self.results = None
        probe = self.probe(trainer, module, datamodule, hidden_layers(self.detectors.values()))
        choice = choose(probe, self.detectors, self._earlier, strict=self.options.strict)
        start = Start(owner, trainer, module, datamodule, choice, self._earlier, clock, self.options, output, self.draw)
        return self.record_run(start)

    def ended(self, recorder: Any) -> None:
        """Store the results of the run."""
        self.results = recorder.results

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"{type(self).__name__}({', '.join(self.detectors)})"
