"""The interface of recorders: what a kind of run does with its batches; `oodlit.runs.shell` decides when."""

from abc import ABC, abstractmethod
from typing import Any

from oodlit.base.plan import RunPlan


class Recorder(ABC):
    """Receives the batches of one `trainer.predict`.

    The calls are `begin`, `ready`, for each batch `check` and `take`, then `finish` and `publish`. A run that fails
    calls `stop` in place of what is left.
    """

    plan: RunPlan | None = None
    """What the run requires of its module and data module."""
    cost = ""
    """Text about slow detectors; empty until measured."""
    position = ""
    """Where a resumed run continues; empty for a run from the start."""

    def begin(self) -> None:  # noqa: B027  # beside another run, that run decides which streams are read
        """Restore the progress of an earlier start, and allocate memory; `plan` is valid from this call on."""

    def ready(self) -> None:  # noqa: B027  # few recorders look at other callbacks
        """Run checks that require all other callbacks to be set up."""

    @property
    @abstractmethod
    def prediction_bytes(self) -> int:
        """Memory that `trainer.predict` needs in each process if it returns all outputs."""

    def check(self, batch: Any, index: int) -> None:  # noqa: B027  # beside another run, that run checks
        """Check a batch of stream number `index` before it reaches the network."""

    @abstractmethod
    def take(self, outputs: Any, batch: Any, index: int, *, is_last: bool) -> None:
        """Record the outputs of one batch of stream number `index`.

        Args:
            outputs: What `predict_step` returned.
            batch: What it was given.
            index: Position of the stream among those that are read.
            is_last: Whether it is the last batch of the stream on this process.
        """

    @abstractmethod
    def finish(self) -> None:
        """Join the rows of all processes. Every process must call it once."""

    def publish(self) -> None:  # noqa: B027  # a cache has nothing to publish
        """Write and log the results. Errors here do not affect other processes."""

    @abstractmethod
    def stop(self, error: BaseException) -> str:
        """Stop after an error.

        Returns:
            What is kept of the run, and how to resume it; empty if nothing is.
        """
