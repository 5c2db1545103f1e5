"""Import hypothesis and pytest, which are optional, when they are used."""

import importlib
from types import ModuleType

from oodlit.base.errors import MissingExtraError


def import_extra(module: str) -> ModuleType:
    """Import a module of the `testing` extra.

    Raises:
        MissingExtraError: It is not installed; the message has the pip command.

    Example:
        >>> import_extra("hypothesis").__name__
        'hypothesis'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, package):
            raise
        raise MissingExtraError.of(f"oodlit.testing with {package}", "testing") from error
