"""TensorBoard: settings and headline values as HPARAMS, the summary as text, figures as images."""

import numpy as np
from PIL import Image

from oodlit._lightning import pl
from oodlit.runs.loggers.parts import log_figure, log_settings, log_summary
from oodlit.runs.loggers.run_log import RunLog


@log_settings.register
def _(logger: pl.loggers.TensorBoardLogger, run: RunLog) -> None:
    # Without a value beside them TensorBoard shows no settings; None lets Lightning write its own.
    logger.log_hyperparams(dict(run.settings), metrics=dict(run.headline) or None)


@log_summary.register
def _(logger: pl.loggers.TensorBoardLogger, run: RunLog) -> None:
    logger.experiment.add_text("summary", run.markdown(), global_step=0)


@log_figure.register
def _(logger: pl.loggers.TensorBoardLogger, name: str, figure: Image.Image) -> None:
    logger.experiment.add_image(f"figures/{name}", np.asarray(figure), global_step=0, dataformats="HWC")
