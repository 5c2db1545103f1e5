"""The Lightning that oodlit's classes belong to.

Lightning comes in two packages, `pytorch_lightning` and `lightning.pytorch`, whose classes are not each other's: a
`Trainer` of one refuses modules of the other. oodlit takes `lightning.pytorch` where that is loaded when oodlit is, and
`pytorch_lightning` else.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["pl", "warn_of_two"]

if TYPE_CHECKING:
    import pytorch_lightning as pl
else:
    OTHER, CHOICE = "lightning.pytorch", "OODLIT_LIGHTNING"
    OURS = "pytorch_lightning"
    _loaded = next((name for name in (OURS, OTHER) if name in sys.modules), None)
    # Processes that this one starts may import oodlit first: they inherit the choice.
    _name = _loaded or os.environ.get(CHOICE, OURS)
    os.environ[CHOICE] = _name
    pl = import_module(_name)


def warn_of_two() -> None:
    """Warn where the other package is loaded, too: its `Trainer` would refuse oodlit's classes in words of its own."""
    if pl.__name__ == "pytorch_lightning" and "lightning.pytorch" in sys.modules:
        warnings.warn(
            "lightning and pytorch_lightning are both loaded; oodlit belongs to pytorch_lightning here: take its"
            " Trainer, or import lightning before oodlit",
            stacklevel=3,
        )
