"""The Lightning side of a run: hooks, other processes, signals, errors and the lock of the output folder."""

import contextlib
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch

from oodlit._lightning import pl
from oodlit.backbones.loading import kept_mode
from oodlit.base.plan import RunPlan
from oodlit.base.processes import peers
from oodlit.base.processes.termination import end_on_sigterm, is_default, say_where
from oodlit.results.files.storage import LOCK
from oodlit.runs.folder import check_writable, lock_folder
from oodlit.runs.recorder import Recorder
from oodlit.runs.run_checks import Parts, check_outputs, check_packages, warn_of_many_predictions
from oodlit.runs.verification import leave_as_it_was


class RunCallback(pl.Callback):
    """Call the recorder of a run at the right moments. Subclasses hold the arguments and make the recorder.

    Hooks used: setup, on_predict_start, on_predict_batch_start, on_predict_batch_end, on_predict_end, teardown,
    on_exception.

    Args:
        parts: Classes of module, data module and outputs that the run needs.
        folder: Where the run writes; None = nowhere.
        argument: What messages call the folder.
        lock: Name of the file in the folder that keeps other runs away.
    """

    def __init__(
        self, parts: Parts, folder: str | Path | None, *, argument: str = "output_dir", lock: str = LOCK
    ) -> None:
        super().__init__()
        self.cost = self.position = ""
        # Absolute at once: a change of the working directory during the run must not move the results.
        self._folder = None if folder is None else Path(folder).expanduser().absolute()
        self._parts, self._argument, self._lock_name = parts, argument, lock
        self._cleanup = contextlib.ExitStack()
        self._recorder: Recorder | None = None
        self._ends_on_sigterm = False

    @abstractmethod
    def make_recorder(self, trainer: pl.Trainer, module: Any, datamodule: Any) -> Recorder:
        """Check everything before the first batch, and return the recorder."""

    def ended(self, recorder: Any) -> None:
        """Copy the joined results from the recorder to the callback."""

    @property
    def plan(self) -> RunPlan | None:
        """What a run in progress requires of module and data module; None before and after the run."""
        return None if self._recorder is None else self._recorder.plan

    def lock_folder(self, trainer: pl.Trainer) -> None:
        """Create the output folder, and lock it until this run ends.

        Raises:
            InvalidArgumentError: Nothing can be written there, or another run holds it.
        """
        assert self._folder is not None
        check_writable(self._folder, what=self._argument)
        if trainer.is_global_zero:
            self._cleanup.enter_context(lock_folder(self._folder, what=self._argument, name=self._lock_name))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything before the first batch."""
        if stage != "predict":
            return
        peers.watch()
        self.cost = self.position = ""
        self._ends_on_sigterm = is_default()
        data = getattr(trainer, "datamodule", None)
        parts = check_packages(type(self).__name__, trainer, pl_module, data, self._parts)
        self._disable_autocast(parts[0])
        self._cleanup.enter_context(kept_mode(pl_module))  # Lightning leaves eval mode on after a failure
        self._recorder = recorder = self.make_recorder(*parts)
        self._report(recorder)
        recorder.begin()
        self.position = recorder.position
        if trainer.predict_loop.return_predictions:
            warn_of_many_predictions(recorder.prediction_bytes)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Handle SIGTERM again: Lightning would handle it and let the run continue."""
        if self._ends_on_sigterm:
            end_on_sigterm()
        self._current().ready()

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Check that no other process has failed, and that the batch suits the network."""
        peers.check()
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
        """Record the outputs of a batch."""
        recorder = self._current()
        outputs = check_outputs(type(self).__name__, pl_module, outputs, self._parts)
        is_last = batch_idx + 1 == trainer.num_predict_batches[dataloader_idx]
        recorder.take(outputs, batch, dataloader_idx, is_last=is_last)
        self._report(recorder)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process without batches, for which Lightning skips the hooks of the loop."""
        self._finish()
        peers.forget()
        self._cleanup.close()  # not earlier: the end of torch.inference_mode would undo a change of autocast

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Inform the other processes, discard the state of the run, and report what is kept."""
        peers.tell(exception)
        leave_as_it_was(pl_module)
        recorder, self._recorder = self._recorder, None
        if recorder is not None and (kept := recorder.stop(exception)):
            say_where(exception, kept)
        self._cleanup.close()

    def _disable_autocast(self, trainer: pl.Trainer) -> None:
        """Prevent a surrounding `torch.autocast` from changing the recorded precision of the run."""
        kinds = [kind for kind in {"cpu", trainer.strategy.root_device.type} if torch.is_autocast_enabled(kind)]
        for kind in kinds:
            self._cleanup.enter_context(torch.autocast(kind, enabled=False))
        if kinds:
            pl.utilities.rank_zero_info(
                f"oodlit: torch.autocast around trainer.predict has no effect; the run computes in {trainer.precision}."
                " For mixed precision, pass precision='bf16-mixed' to the Trainer"
            )

    def _current(self) -> Recorder:
        assert self._recorder is not None, "setup runs first"
        return self._recorder

    def _report(self, recorder: Recorder) -> None:
        if recorder.cost and recorder.cost != self.cost:
            self.cost = recorder.cost
            pl.utilities.rank_zero_info(f"oodlit: {self.cost}")

    def _finish(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        recorder.finish()
        peers.unwatch()
        self.ended(recorder)
        self._recorder = None  # not earlier: other processes learn why this one fails until then
        recorder.publish()
