"""Loggers with a short name for `oodlit evaluate --logger`; all other loggers are given by class."""

import os
from importlib.util import find_spec
from pathlib import Path

from oodlit._lightning import pl
from oodlit.base.errors import MissingExtraError

__all__ = ["csv", "mlflow", "tensorboard", "wandb"]

FOLDER = "oodlit-logs"


def csv(folder: str = FOLDER, name: str = "csv") -> pl.loggers.Logger:
    """CSV files in numbered folders, `version_0` and so on.

    Args:
        folder: Folder of the logs.
        name: Its subfolder for this logger.
    """
    return pl.loggers.CSVLogger(folder, name=name)


def tensorboard(folder: str = FOLDER, name: str = "tensorboard") -> pl.loggers.Logger:
    """Event files; `tensorboard --logdir FOLDER` shows them.

    Args:
        folder: Folder of the logs.
        name: Its subfolder for this logger.

    Raises:
        MissingExtraError: The package is not installed.
    """
    _check("tensorboard", "tensorboard")
    return pl.loggers.TensorBoardLogger(folder, name=name)


def wandb(project: str = "oodlit", name: str | None = None, folder: str = FOLDER) -> pl.loggers.Logger:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine.

    Args:
        project: Name of the project.
        name: Name of the run; None = chosen by W&B.
        folder: Folder for its files.

    Raises:
        MissingExtraError: The package is not installed.
    """
    _check("wandb", "wandb")
    Path(folder).mkdir(parents=True, exist_ok=True)  # otherwise W&B uses a temporary one
    return pl.loggers.WandbLogger(name=name, save_dir=folder, project=project)


def mlflow(
    experiment: str = "oodlit", name: str | None = None, uri: str | None = None, folder: str = FOLDER
) -> pl.loggers.Logger:
    """A run of MLflow.

    Args:
        experiment: Name of the experiment.
        name: Name of the run; None = chosen by MLflow.
        uri: Tracking store; None = MLFLOW_TRACKING_URI, or a database in the folder if that is not set.
        folder: Folder of that database.

    Raises:
        MissingExtraError: The package, or one that it requires, is not installed.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    _check("mlflow", "mlflow", *(() if uri else ("sqlalchemy",)))  # not a dependency of mlflow-skinny
    artifacts = None
    if not uri:
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        uri, artifacts = f"sqlite:///{place / 'mlflow.db'}", (place / "mlflow").as_uri()
    return pl.loggers.MLFlowLogger(experiment, run_name=name, tracking_uri=uri, artifact_location=artifacts)


def _check(word: str, *modules: str) -> None:
    """Raise unless all modules are installed."""
    if None in map(find_spec, modules):
        raise MissingExtraError(f"--logger {word} requires a package that is not installed: pip install {word}")
