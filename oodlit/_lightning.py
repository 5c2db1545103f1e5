"""Choose the Lightning package that oodlit's classes belong to.

Lightning exists as two packages, `pytorch_lightning` and `lightning.pytorch`, whose classes are incompatible: the
`Trainer` of one refuses modules of the other. oodlit uses `lightning.pytorch` if it is already imported, and
`pytorch_lightning` otherwise.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pl", "silent_trainer", "warn_of_two"]

if TYPE_CHECKING:
    import pytorch_lightning as pl
else:
    OTHER, CHOICE = "lightning.pytorch", "OODLIT_LIGHTNING"
    OURS = "pytorch_lightning"
    _loaded = next((name for name in (OURS, OTHER) if name in sys.modules), None)
    # Child processes may import oodlit first: they inherit the choice.
    _name = _loaded or os.environ.get(CHOICE, OURS)
    os.environ[CHOICE] = _name
    pl = import_module(_name)


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


def warn_of_two() -> None:
    """Warn if the other package is imported too, since its `Trainer` would refuse oodlit's classes."""
    if pl.__name__ == "pytorch_lightning" and "lightning.pytorch" in sys.modules:
        warnings.warn(
            "lightning and pytorch_lightning are both imported; oodlit uses pytorch_lightning: use its Trainer, or"
            " import lightning before oodlit",
            stacklevel=3,
        )
