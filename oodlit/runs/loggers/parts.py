"""Log each part of a run to a logger of any class; loggers with more abilities register their own functions.

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
    """Log all values in one call."""
    logger.log_metrics(dict(run.values), step=0)


@singledispatch
def log_settings(logger: pl.loggers.Logger, run: RunLog) -> None:
    """Log the settings as hyperparameters."""
    logger.log_hyperparams(dict(run.settings))


@singledispatch
def log_summary(logger: pl.loggers.Logger, run: RunLog) -> None:
    """Log the summary table; most loggers do not support tables."""


@singledispatch
def log_figure(logger: pl.loggers.Logger, name: str, figure: Image.Image) -> None:
    """Log one figure; most loggers do not support figures."""


def takes_figures(logger: pl.loggers.Logger) -> bool:
    """Whether the logger supports figures."""
    return log_figure.dispatch(type(logger)) is not log_figure.dispatch(object)
