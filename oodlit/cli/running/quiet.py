"""Run without the messages of underlying libraries: one progress bar, warnings kept for the record."""

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.progress import Progress

from oodlit._lightning import LIGHTNING_LOGGERS, pl
from oodlit.backbones.loading import quiet_loggers
from oodlit.base.text.singular import singular

_HINTS = re.compile(r"many workers|LeafSpec|logging interval|`?Trainer`? already configured|GPU available|torch\.jit")


class RunProgress(pl.Callback):
    """One bar for training and one for prediction, in place of Lightning's own.

    Args:
        bars: The display; it must be running.
        doing: Description of the prediction.
        then: Description of what follows the last batch.
    """

    def __init__(
        self, bars: Progress, *, doing: str = "streaming", then: str = "computing metrics and intervals"
    ) -> None:
        """Show nothing before a loop starts."""
        self.bars, self.doing, self.then = bars, doing, then
        self.task: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the bar of the training: one step per epoch."""
        self.task = self.bars.add_task("training the network", total=trainer.max_epochs)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Advance by one epoch."""
        self.bars.advance(self.task)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the bar of the streams: one step per batch."""
        counts = trainer.num_predict_batches  # infinite for pipelines of unknown length
        total = int(sum(counts)) if all(map(math.isfinite, counts)) else None
        self.task = self.bars.add_task(self.doing, total=total)

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Show the stream that is read."""
        if batch_idx == 0:
            data: Any = getattr(trainer, "datamodule", None)
            stream = data.active_streams[dataloader_idx]
            self.bars.update(self.task, description=f"{self.doing} {stream.name}")
            if not self.bars.console.is_terminal:  # a bar in a file only appears at its end
                text = singular(f"{self.doing} {stream.name}: {len(stream)} images")
                self.bars.console.print(text, highlight=False, markup=False)

    def on_predict_batch_end(self, *_: Any, **__: Any) -> None:
        """Advance by one batch."""
        self.bars.advance(self.task)

    def on_predict_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the bar of what follows the last batch."""
        self.bars.update(self.task, description=self.doing)
        self.task = self.bars.add_task(self.then, total=1)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Complete the last bar."""
        if stage == "predict" and self.task is not None:
            self.bars.update(self.task, completed=self.bars.tasks[self.task].total)


class Announcement(pl.Callback):
    """Print a text before the first batch, and again whenever the text has changed.

    Args:
        text: Returns the current text.
        say: Prints a line.
    """

    def __init__(self, text: Callable[[], str], say: Callable[[str], None]) -> None:
        self.text, self.say = text, say
        self._reported = ""

    def on_predict_start(self, *_: Any, **__: Any) -> None:
        """Print the text, unless it was printed before."""
        if (text := self.text()) != self._reported:
            self._reported = text
            self.say(text)

    on_predict_batch_end = on_predict_start


class _Collector(logging.Handler):
    """Collect messages instead of printing them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def quiet() -> Iterator[Callable[[], list[str]]]:
    """Silence Lightning's messages and hints; collect all other warnings.

    Yields:
        A function that returns the distinct warnings so far.
    """
    collector = _Collector()
    ours = logging.getLogger("oodlit")
    ours.addHandler(collector)
    lightning = quiet_loggers(*LIGHTNING_LOGGERS)
    with warnings.catch_warnings(record=True) as caught, lightning:
        warnings.simplefilter("always")
        try:
            yield lambda: _distinct([*(str(entry.message) for entry in caught), *collector.texts])
        finally:
            ours.removeHandler(collector)


def _distinct(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if not _HINTS.search(text)))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed; the random state of the caller is restored."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: tensors of a few kilobytes gain nothing from more, and lose much if cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
