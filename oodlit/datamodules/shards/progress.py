"""A progress bar for whoever runs a build or a verification by hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[int], object]]:
    """A bar on the standard error stream, as the callback that `build_shards` and `verify_shards` take.

    Args:
        title: Text before the bar.
        total: Number of images; None if unknown.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
