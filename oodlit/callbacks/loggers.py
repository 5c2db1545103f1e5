"""Hand the numbers of a run to every logger, whatever happens to one of them."""

from collections.abc import Mapping, Sequence

from oodlit._lightning import pl
from oodlit.errors import LoggingError


def log_to_all(loggers: Sequence[pl.loggers.Logger], values: Mapping[str, float]) -> None:
    """Log all values in one call per logger; a logger that fails takes nothing from those after it.

    Args:
        loggers: In the order of the Trainer.
        values: Name and value of every metric.

    Raises:
        LoggingError: One or more loggers failed; raised when all had their turn, with the class, the position and the
            error of each. The first error is its cause.
    """
    failed: list[tuple[str, Exception]] = []
    for number, logger in enumerate(loggers, start=1):
        try:
            logger.log_metrics(dict(values), step=0)
            logger.save()
        except Exception as error:  # networks, disks and accounts fail with types of their own
            failed.append((f"{type(logger).__name__} (number {number} of {len(loggers)})", error))
    if failed:
        reasons = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed)
        raise LoggingError(
            f"{len(failed)} of {len(loggers)} loggers could not take the metrics - {reasons}. The results themselves"
            " are complete: OODDetection.results, and output_dir if one was given; repair or leave out these loggers"
        ) from failed[0][1]
