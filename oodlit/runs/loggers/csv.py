"""CSV logger: the summary as `summary.csv` and the folder `figures`, beside Lightning's own files."""

import io
from pathlib import Path

import fsspec
from PIL import Image

from oodlit._lightning import pl
from oodlit.base.atomic import write_bytes
from oodlit.runs.loggers.parts import log_figure, log_summary
from oodlit.runs.loggers.run_log import RunLog


@log_summary.register
def _(logger: pl.loggers.CSVLogger, run: RunLog) -> None:
    _write(logger, "summary.csv", run.table().to_csv(index=False).encode())


@log_figure.register
def _(logger: pl.loggers.CSVLogger, name: str, figure: Image.Image) -> None:
    file = io.BytesIO()
    figure.save(file, format="png")
    _write(logger, f"figures/{name}.png", file.getvalue())


def _write(logger: pl.loggers.CSVLogger, name: str, data: bytes) -> None:
    """Write a file into the folder of a logger, on any file system that fsspec supports."""
    if "://" in logger.log_dir:
        with fsspec.open(f"{logger.log_dir}/{name}", "wb") as opened:
            opened.write(data)
        return
    file = Path(logger.log_dir, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, data)
