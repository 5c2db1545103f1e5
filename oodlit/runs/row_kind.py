"""The interface of the parts that differ between runs over images and runs over boxes."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from oodlit.datamodules.stream import Stream
from oodlit.detectors.statistics import Statistics
from oodlit.results import DatasetInfo, Finding
from oodlit.results.run_record import RunRecord
from oodlit.runs.loggers import RunLog
from oodlit.runs.recorder import Recorder


class RowKind(Recorder):
    """The steps of a scored run that depend on its rows: a row is an image or a box."""

    loader = "Results"
    """Name of the class that loads the results."""

    @abstractmethod
    def datasets(self) -> list[DatasetInfo]:
        """The data sets of the results."""

    @abstractmethod
    def make_rows(self) -> dict[str, Any]:
        """Empty rows by data set."""

    @abstractmethod
    def make_statistics(self) -> Statistics:
        """Check that there is enough memory, and return empty statistics for the fit."""

    @abstractmethod
    def take_training(self, outputs: Any, stream: Stream) -> None:
        """Feed one batch of a training stream to the statistics."""

    @abstractmethod
    def take_test(self, outputs: Any, batch: Any, stream: Stream) -> None:
        """Score one batch of another stream."""

    @abstractmethod
    def check_fit_rows(self) -> int:
        """Count the training rows of all processes; raise an error if there are none, but detectors require some."""

    @abstractmethod
    def is_of(self, folder: Path, key: str) -> bool:
        """Whether a folder contains the results of this run."""

    @abstractmethod
    def evaluate(self) -> Any:
        """The results, the same on every process."""

    @abstractmethod
    def write(self, folder: Path, **options: Any) -> Path:
        """Write the results to a folder."""

    @abstractmethod
    def run_log(self) -> RunLog:
        """Content for loggers."""

    @abstractmethod
    def record(self) -> RunRecord:
        """The record of this run, without results."""

    @abstractmethod
    def findings(self) -> Iterable[Finding]:
        """Findings of the results, which are shown as warnings."""

    def after_fit(self) -> None:  # boxes have no thresholds of training rows
        """Score the sample of the training rows."""

    def close_streams(self, over: Sequence[Stream]) -> None:  # parts of results over boxes are no results
        """Save the rows of finished streams of this process."""

    def more_state(self) -> dict[str, Any]:
        """Further values that the progress file stores, beside rows and scores."""
        return {}

    def restore_more(self, state: dict[str, Any]) -> None:  # see `more_state`
        """Restore the values that `more_state` returned in an earlier start of this run."""
