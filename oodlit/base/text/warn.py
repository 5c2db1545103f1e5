"""Warn at the user's line."""

import inspect
import warnings

from oodlit.base.processes.rank import is_first_process
from oodlit.base.text.readable import readable

_INNER = {"oodlit", "pytorch_lightning", "lightning", "lightning_utilities", "torch", "contextlib", "functools"}
"""Packages that a call passes on its way from the user's line."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of what all processes of a run know, in the first of them; see `warn_here`."""
    if is_first_process():
        warn_here(message, category)


def warn_here(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the place of the caller outside of oodlit and of the libraries that call it.

    Args:
        message: The text; keys of images in it are shown as paths.
        category: Class of the warning.
    """
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(readable(message), category, stacklevel=level)
