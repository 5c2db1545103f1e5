"""Log a run to every logger, even if one of them fails."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from PIL import Image

from oodlit._lightning import pl
from oodlit.base.errors import LoggingError
from oodlit.runs.loggers.parts import log_figure, log_settings, log_summary, log_values, takes_figures
from oodlit.runs.loggers.run_log import RunLog


def log_to_all(loggers: Sequence[pl.loggers.Logger], run: RunLog, owner: str = "OODDetection") -> None:
    """Log a run; if a logger or a part of the run fails, the remaining loggers and parts are still logged.

    One that cannot take the values is asked for nothing further: where nobody answers, every question takes its time.

    Args:
        loggers: In the order of the Trainer.
        run: What there is to log.
        owner: Name of the callback that has the results.

    Raises:
        LoggingError: Something could not be drawn or logged; raised when all had their turn, with the class, the
            position, the part and the error of each. The first error is its cause.
    """
    failed: list[tuple[str, Exception]] = []
    figures = dict(_drawn(run, failed)) if any(map(takes_figures, loggers)) else {}
    for number, logger in enumerate(loggers, start=1):
        for part, log in _parts(logger, run, figures):
            try:
                log()
            except Exception as error:  # networks, disks and accounts fail with types of their own
                failed.append((f"{type(logger).__name__} (number {number} of {len(loggers)}), {part}", error))
                if part == "values":
                    break
    if failed:
        reasons = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed)
        raise LoggingError(
            f"parts of the run could not be logged: {reasons.rstrip('.')}. The results are complete: see the attribute"
            f" `results` of {owner}, or its output_dir. Fix the cause, or remove the logger or figure that failed"
        ) from failed[0][1]


def _drawn(run: RunLog, failed: list[tuple[str, Exception]]) -> Iterator[tuple[str, Image.Image]]:
    """Draw every figure once for all loggers; figures that fail are added to `failed`."""
    for name, draw in run.figures().items():
        try:
            yield name, draw()
        except Exception as error:  # results, fonts and matplotlib fail with types of their own
            failed.append((f"drawing {name}", error))


def _parts(
    logger: pl.loggers.Logger, run: RunLog, figures: dict[str, Image.Image]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The parts of a run that a logger receives, the values first."""
    yield "values", partial(log_values, logger, run)
    yield "settings", partial(log_settings, logger, run)
    if run.summary is not None:
        yield "summary", partial(log_summary, logger, run)
    for name, figure in figures.items():
        yield f"figure {name}", partial(log_figure, logger, name, figure)
    yield "saving", logger.save
