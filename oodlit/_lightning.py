"""Choose the Lightning package that oodlit's classes belong to.

Lightning exists as two packages, `pytorch_lightning` and `lightning.pytorch`, whose classes are incompatible: the
`Trainer` of one refuses modules of the other. oodlit uses the package that was imported first, or `pytorch_lightning`
if none was. Both may be imported, in any order; parts of the wrong one are refused with the reason.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oodlit.base.errors import InvalidArgumentError

__all__ = ["LIGHTNING_LOGGERS", "Module", "check_package", "pl", "silent_trainer"]

if TYPE_CHECKING:
    import pytorch_lightning as pl
else:
    OTHER, CHOICE = "lightning.pytorch", "OODLIT_LIGHTNING"
    OURS = "pytorch_lightning"
    _loaded = next((name for name in [*sys.modules] if name in (OURS, OTHER)), None)  # in the order of import
    # Child processes may import oodlit first: they inherit the choice.
    _name = _loaded or os.environ.get(CHOICE, OURS)
    os.environ[CHOICE] = _name
    pl = import_module(_name)


LIGHTNING_LOGGERS = ("pytorch_lightning", "lightning.pytorch", "lightning_fabric")


def silent_trainer(*callbacks: "pl.Callback", **options: Any) -> "pl.Trainer":
    """A Trainer on one device that neither prints, logs nor saves anything."""
    return pl.Trainer(
        callbacks=[*callbacks],
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


def check_package(owner: str, part: object, kind: type, what: str) -> None:
    """Refuse a part of a run that belongs to the other package.

    Raises:
        InvalidArgumentError: It does.
    """
    if isinstance(part, kind):
        return
    for base in type(part).__mro__:
        if base.__name__ == kind.__name__:
            ours, theirs = pl.__name__, base.__module__.partition(".")[0]
            before = "lightning" if theirs == "lightning" else "pytorch_lightning"
            raise InvalidArgumentError(
                f"{owner}: expected {what} from {ours}, got one from {theirs}. oodlit uses only {ours} in this program."
                f" Use {ours}.{kind.__name__}, or write `import {before}` above all imports of oodlit and of"
                f" {ours.partition('.')[0]}"
            )


def _join_other() -> None:
    """Give `Module` the other package's `LightningModule` as a second base, if that package is imported.

    Otherwise the other Trainer would refuse the module before oodlit can explain why.
    """
    other = sys.modules.get("lightning.pytorch" if pl.__name__ == "pytorch_lightning" else "pytorch_lightning")
    base = getattr(other, "LightningModule", None)  # None during its import
    if base is not None and base not in Module.__mro__:
        Module.__bases__ = (*Module.__bases__, base)


class _Asked:
    """Joins the other package when `isinstance` asks for the class: it may be imported after the object was made."""

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        """The class of the object."""
        _join_other()
        return type(self)


class Module(_Asked, pl.LightningModule):
    """Base class of oodlit's modules: reports a Trainer of the other package as an error that names the way out."""

    def __init__(self) -> None:
        super().__init__()
        _join_other()

    @property
    def trainer(self) -> Any:
        """The Trainer of the current run."""
        return super().trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        check_package(type(self).__name__, trainer, pl.Trainer, "a Trainer")
        pl.LightningModule.trainer.fset(self, trainer)  # type: ignore[attr-defined]
