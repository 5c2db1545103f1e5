"""The parts of a run, and what a logger of any class does with each; those that can do more register it.

Each logger class has a file beside this one, with functions such as

    @log_summary.register
    def _(logger: pl.loggers.WandbLogger, run: RunLog) -> None: ...

and a line in `oodlit/runs/loggers/__init__.py`.
"""

from functools import singledispatch

from PIL import Image

from oodlit._lightning import pl
from oodlit.runs.loggers.run_log import RunLog


@singledispatch
def log_values(logger: pl.loggers.Logger, run: RunLog) -> None:
    """All values in one call."""
    logger.log_metrics(dict(run.values), step=0)


@singledispatch
def log_settings(logger: pl.loggers.Logger, run: RunLog) -> None:
    """The settings, as hyper-parameters."""
    logger.log_hyperparams(dict(run.settings))


@singledispatch
def log_summary(logger: pl.loggers.Logger, run: RunLog) -> None:
    """The summary table; most loggers have no place for it."""


@singledispatch
def log_figure(logger: pl.loggers.Logger, name: str, figure: Image.Image) -> None:
    """One figure; a logger in general has no place for it."""


def takes_figures(logger: pl.loggers.Logger) -> bool:
    """Whether it is worth to draw one."""
    return log_figure.dispatch(type(logger)) is not log_figure.dispatch(object)
