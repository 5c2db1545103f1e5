"""MLflow: settings as parameters, the summary as a table, figures as images, with names that MLflow accepts."""

import hashlib
from collections.abc import Collection, Mapping
from typing import TypeVar

from PIL import Image

from oodlit._lightning import pl
from oodlit.results.names import distinct
from oodlit.runs.loggers.parts import log_figure, log_settings, log_summary, log_values
from oodlit.runs.loggers.run_log import RunLog

ValueT = TypeVar("ValueT")

BATCH = 1000
"""Largest number of values per call that MLflow accepts; Lightning does not split them."""
LONGEST = 250
"""Characters that MLflow does not allow in a name."""


@log_values.register
def _(logger: pl.loggers.MLFlowLogger, run: RunLog) -> None:
    items = list(_named(run.values).items())
    for start in range(0, len(items), BATCH):
        logger.log_metrics(dict(items[start : start + BATCH]), step=0)


@log_settings.register
def _(logger: pl.loggers.MLFlowLogger, run: RunLog) -> None:
    logger.log_hyperparams(_named(run.settings))


@log_summary.register
def _(logger: pl.loggers.MLFlowLogger, run: RunLog) -> None:
    table = run.table().astype({"detector": object})  # MLflow looks for text by its dtype before pandas 3
    logger.experiment.log_table(logger.run_id, data=table, artifact_file="summary.json")


@log_figure.register
def _(logger: pl.loggers.MLFlowLogger, name: str, figure: Image.Image) -> None:
    logger.experiment.log_image(logger.run_id, figure, artifact_file=f"figures/{name}.png")


def _named(values: Mapping[str, ValueT]) -> dict[str, ValueT]:
    return dict(zip(mlflow_names(values.keys()), values.values(), strict=True))


def mlflow_names(names: Collection[str]) -> list[str]:
    """Return metric names that are valid and distinct in every MLflow store.

    A store of files has one file for each name. So a name that is the beginning of others, as the value of a whole set
    is of those of its classes, gets `/all`; a part of dots alone is written with `_`; a name of more than 250
    characters is cut, with a hash of the whole one. Names that differ in case alone, which some file systems and data
    bases do not tell apart, get `_2`, `_3`, ...

    Args:
        names: Distinct names of safe parts between slashes.

    Example:
        >>> mlflow_names(["far/msp/fpr95", "far/msp/fpr95/Cat", "far/msp/fpr95/cat", "far/../auroc"])
        ['far/msp/fpr95/all', 'far/msp/fpr95/Cat', 'far/msp/fpr95/cat_2', 'far/__/auroc']
    """
    found = [_cut("/".join(p if p.strip(".") else "_" * len(p) for p in name.split("/"))) for name in names]
    while True:
        found = distinct(found, same=str.casefold)
        folders = {folder for name in found for folder in _folders(name.casefold())}
        if not folders & {name.casefold() for name in found}:
            return found
        found = [f"{name}/all" if name.casefold() in folders else name for name in found]


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _cut(name: str) -> str:
    # Room is left for what makes it distinct.
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name) <= LONGEST - 30 else f"{name[: LONGEST - 45].rstrip('/')}-{digest}"
