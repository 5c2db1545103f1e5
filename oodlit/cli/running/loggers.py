"""Loggers that `oodlit evaluate --logger` knows by one word, with what they need set; others go by their class."""

import os
from importlib.util import find_spec
from pathlib import Path

from oodlit._lightning import pl
from oodlit.errors import MissingExtraError

__all__ = ["csv", "mlflow", "tensorboard", "wandb"]

FOLDER = "oodlit-logs"


def csv(folder: str = FOLDER, name: str = "csv") -> pl.loggers.Logger:
    """Files in a folder of their own, `version_0` and so on.

    Args:
        folder: Where.
        name: Folder of the versions in it.
    """
    return pl.loggers.CSVLogger(folder, name=name)


def tensorboard(folder: str = FOLDER, name: str = "tensorboard") -> pl.loggers.Logger:
    """Event files; `tensorboard --logdir FOLDER` shows them.

    Args:
        folder: Where.
        name: Folder of the versions in it.

    Raises:
        MissingExtraError: The package is not installed.
    """
    _check("tensorboard", "tensorboard")
    return pl.loggers.TensorBoardLogger(folder, name=name)


def wandb(project: str = "oodlit", name: str | None = None, folder: str = FOLDER) -> pl.loggers.Logger:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine.

    Args:
        project: Its project.
        name: Its name; None = one that W&B makes up.
        folder: Where its files are.

    Raises:
        MissingExtraError: The package is not installed.
    """
    _check("wandb", "wandb")
    Path(folder).mkdir(parents=True, exist_ok=True)  # else W&B takes a temporary one
    return pl.loggers.WandbLogger(name=name, save_dir=folder, project=project)


def mlflow(
    experiment: str = "oodlit", name: str | None = None, uri: str | None = None, folder: str = FOLDER
) -> pl.loggers.Logger:
    """A run of MLflow.

    Args:
        experiment: Its experiment.
        name: Its name; None = one that MLflow makes up.
        uri: The store; None = MLFLOW_TRACKING_URI, or without it a data base of files in the folder.
        folder: Where that data base is.

    Raises:
        MissingExtraError: The package is not installed, or not whole.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    _check("mlflow", "mlflow", *(() if uri else ("sqlalchemy",)))  # which mlflow-skinny does not bring
    if not uri:
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        return pl.loggers.MLFlowLogger(
            experiment,
            run_name=name,
            tracking_uri=f"sqlite:///{place / 'mlflow.db'}",
            artifact_location=(place / "mlflow").as_uri(),
        )
    return pl.loggers.MLFlowLogger(experiment, run_name=name, tracking_uri=uri)


def _check(word: str, *modules: str) -> None:
    """Raise unless all modules are installed."""
    if any(find_spec(module) is None for module in modules):
        raise MissingExtraError(f"--logger {word} needs a package that is not installed: pip install {word}")
