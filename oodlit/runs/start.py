"""Description of a run before its first batch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from oodlit._lightning import pl
from oodlit.runs.choice import Choice
from oodlit.runs.earlier_fit import EarlierFit
from oodlit.runs.folder import OutputFolder
from oodlit.runs.record import Record
from oodlit.scoring.clock import Clock


class Options(NamedTuple):
    """Arguments of every callback with detectors.

    Args:
        output_dir: Folder for what the run leaves; None = results stay in memory.
        strict: Whether a detector that does not apply or fails stops the run.
        record: Gives further entries of the record.
        resume: Whether to resume an interrupted run.
        keep_every_s: Least time between two writings of the progress, in seconds.
    """

    output_dir: str | Path | None
    strict: bool
    record: Record
    resume: bool
    keep_every_s: float


@dataclass(frozen=True)
class Start:
    """What is known of a run before its first batch.

    Args:
        owner: Name of the callback, for messages.
        trainer: The Trainer.
        module: The network.
        datamodule: The streams.
        choice: What runs.
        earlier: The fit that exists already.
        clock: Measures where the time goes.
        options: Arguments of the callback.
        output: The output folder; None = results stay in memory.
        draw: Draws pictures and the page into a folder, from the results and the data module.
    """

    owner: str
    trainer: pl.Trainer
    module: Any
    datamodule: Any
    choice: Choice
    earlier: EarlierFit
    clock: Clock
    options: Options
    output: OutputFolder | None
    draw: Callable[[Any, Any, Path], None]

    def more_record(self) -> dict[str, Any]:
        """Entries of the record that the caller adds."""
        folder = self.earlier.folder
        return {**self.options.record(), **({} if folder is None else {"fitted_from": str(folder)})}
