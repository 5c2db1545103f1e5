"""Weights & Biases: settings as the config, the summary as a Table, figures as Images."""

from PIL import Image

from oodlit._lightning import pl
from oodlit.runs.loggers.parts import log_figure, log_summary
from oodlit.runs.loggers.run_log import RunLog


@log_summary.register
def _(logger: pl.loggers.WandbLogger, run: RunLog) -> None:
    logger.log_table("summary", dataframe=run.table(), step=0)


@log_figure.register
def _(logger: pl.loggers.WandbLogger, name: str, figure: Image.Image) -> None:
    logger.log_image(f"figures/{name}", [figure], step=0)
