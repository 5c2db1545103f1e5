"""Output of commands: results on standard output, progress on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from oodlit.base.text.readable import readable


class _Console(Console):
    """A console that lets the command end if its output is closed."""

    def on_broken_pipe(self) -> None:
        """Leave the exit to the command line; rich would exit as if the run had failed."""
        raise BrokenPipeError


@cache
def _err() -> Console:
    return Console(stderr=True)


def console() -> Console:
    """A console for the current standard output; wide if that is a file."""
    made = _Console()
    return made if made.is_terminal else _Console(width=200)


def say(text: object) -> None:
    """Print a line of a result without formatting."""
    console().print(readable(str(text)), highlight=False, markup=False, soft_wrap=True)


def status(text: str) -> Status:
    """A spinner for work of unknown length; silent unless standard error is a terminal."""
    return _err().status(text)


def progress(*, shown: bool = True) -> Progress:
    """Progress bars for work of known length, on standard error; one line each at the end if it is not a terminal.

    Args:
        shown: False = print nothing, for all processes but the first.
    """
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=_err() if shown else Console(stderr=True, quiet=True),  # rich < 14.3 ends a disabled bar too
        disable=not shown,
    )


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[int], object]]:
    """Show one progress bar; yields the callback that advances it.

    Args:
        title: Text before the bar.
        total: Number of images; None if unknown.
    """
    with progress() as bars:
        task = bars.add_task(title, total=total)
        yield lambda count: bars.advance(task, count)
